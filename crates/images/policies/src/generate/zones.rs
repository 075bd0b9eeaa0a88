//! The seven zones of the trace.
//!
//! Two fitted numbers reproduce the published figures of each (how many deployments, and how many
//! bring a new version); the rest is the recipe's. Beside it what a trace of all deployments has,
//! seed 1: ratios to what was published; and the part of deployments that a shared cache of 32 GiB
//! under image LRU finds complete, where the paper's Fig. 3 says 31 to 89 %, and almost none for
//! prs and dev with a very small one (4 GiB here).
//!
//! | zone | blob GETs | working set | 4 GiB | 32 GiB | 512 GiB |
//! |---|---|---|---|---|---|
//! | fra | 1.02 | 0.98 | .44 | .95 | .98 |
//! | syd | 1.02 | 0.91 | .38 | .81 | .94 |
//! | dal | 0.99 | 0.98 | .65 | .85 | .95 |
//! | lon | 1.01 | 0.91 | .34 | .35 | .35 |
//! | prs | 1.04 | 1.04 | .02 | .19 | .92 |
//! | stg | 1.02 | 0.95 | .27 | .49 | .91 |
//! | dev | 1.07 | 0.96 | .01 | .14 | .68 |
//!
//! Of sizes, production: mean 12 to 13 MB a GET (published 14.4), 4.2 to 5.1 % above 64 MiB (6.0) with
//! 72 % of the bytes (65), 70 % below 1 MB (about 68).

/// An availability zone: what was published of it, and what makes a trace like it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Zone {
    /// The paper's short name.
    pub name: &'static str,
    /// Whether containers of users are deployed, or those under development.
    pub production: bool,
    /// Published: days that the trace lasts.
    pub days: u32,
    /// Published: GETs of blobs that were answered with 200.
    pub blob_gets: u64,
    /// Published: clients.
    pub clients: usize,
    /// Published (the paper): the size of all that is deployed, GB.
    pub working_set_gb: u64,
    /// Fitted to `blob_gets`: deployments in all.
    pub deployments: u64,
    /// Fitted to `working_set_gb`: repositories,
    pub repositories: usize,
    /// and how many deployments bring a new version.
    pub update: f64,
    /// Chosen: the popularity of the repository of rank r falls as r to minus this.
    pub popularity: f64,
    /// Chosen: chains of base layers, of which the popularity falls as 1/r.
    pub bases: usize,
    /// Chosen: the part of new versions that 5 to 50 clients pull within seconds.
    pub rollout: f64,
}

/// The part of clients that fetch all layers each time.
pub const FORGETFUL: f64 = 0.15;

/// All of them.
#[rustfmt::skip]
pub const ZONES: [Zone; 7] = [
    Zone { name: "fra", production: true,  days: 73, blob_gets:   701_530, clients: 2182, working_set_gb:   86, deployments: 103_000, repositories: 550, update: 0.012, popularity: 0.95, bases: 100, rollout: 0.1 },
    Zone { name: "syd", production: true,  days: 63, blob_gets:   211_521, clients: 1058, working_set_gb:   92, deployments: 28_500, repositories:    900, update: 0.033, popularity: 0.9, bases: 100, rollout: 0.1 },
    Zone { name: "dal", production: true,  days: 73, blob_gets: 7_236_886, clients: 8157, working_set_gb: 1718, deployments: 1_010_000, repositories: 12_000, update: 0.031, popularity: 1.3, bases: 400, rollout: 0.1 },
    Zone { name: "lon", production: true,  days: 73, blob_gets: 1_747_872, clients: 1178, working_set_gb: 6789, deployments: 235_000, repositories: 60_000, update: 0.97, popularity: 0.9, bases: 400, rollout: 0.025 },
    Zone { name: "prs", production: false, days: 64, blob_gets:   263_142, clients:   18, working_set_gb:  213, deployments: 50_000, repositories:  2_000, update: 0.045, popularity: 0.2, bases: 200, rollout: 0.0 },
    Zone { name: "stg", production: false, days: 70, blob_gets: 2_377_935, clients: 1980, working_set_gb: 1181, deployments: 330_000, repositories:  8_000, update: 0.062, popularity: 0.9, bases: 400, rollout: 0.1 },
    Zone { name: "dev", production: false, days: 54, blob_gets:   118_222, clients:   29, working_set_gb:  283, deployments: 18_000, repositories: 2_500, update: 0.2, popularity: 0.2, bases: 200, rollout: 0.0 },
];
