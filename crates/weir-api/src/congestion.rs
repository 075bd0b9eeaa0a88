use std::net::IpAddr;

use hyper::Method;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use weir_cc::{AdviceView, Direction, Explained, FlowRecord, Origin, Rule, StatsView};

use crate::{Client, ClientError, client::segment};

/// A rule of congestion control, and whom it reaches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CongestionRule {
    /// In the order of the configuration, from 1.
    pub number: usize,
    /// The connections that the rule is for: `container web to 10.0.0.0/8 port 443 out`.
    pub connections: String,
    /// The algorithms that they use: `bbr, cubic after 1MiB`.
    pub action: String,
    /// The classes whose sockets it is about; empty if it is about all of them.
    pub classes: Vec<String>,
    /// The reason if it reaches no connection now.
    pub problem: Option<String>,
    /// The origin of the rule.
    #[serde(default)]
    pub origin: Origin,
}

/// A change of trials: `POST /v1/congestion/advice`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdviceRequest {
    /// Of which network; none for all.
    pub to: Option<IpNet>,
    /// What.
    pub verb: AdviceVerb,
}

/// See [`AdviceRequest`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AdviceVerb {
    /// The best algorithm becomes the rule.
    Apply,
    /// It is only to be recommended.
    Hold,
    /// The rule that it has become is to be taken back.
    Rollback,
    /// The results are forgotten.
    Again,
}

/// The rules of congestion control and what they have done since the agent has had any.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CongestionView {
    /// The rules of the configuration.
    pub rules: Vec<CongestionRule>,
    /// The algorithms that the kernel has loaded.
    pub available: Vec<String>,
    /// Why the rules are not in force as they should be, if so.
    pub not_enforced_because: Option<String>,
    /// Connections that were given the algorithm of a rule.
    pub set: u64,
    /// Changes in the flow.
    pub switched: u64,
    /// Connections that were there already and were moved when asked to.
    pub moved: u64,
    /// Algorithms that the kernel refused.
    pub failed: u64,
    /// Connections that have ended.
    pub ended: u64,
    /// Of those, how many tried another algorithm.
    #[serde(default)]
    pub tried: u64,
    /// Connections without a record, because it was not read in time.
    pub lost: u64,
    /// Times that applications said how much they will send.
    #[serde(default)]
    pub hinted: u64,
}

/// A connection to explain: `GET /v1/congestion/explain?to=10.1.2.3&container=web&port=443`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CongestionQuery {
    /// The far end.
    pub to: IpAddr,
    /// A class, by `name` or `source:name`.
    pub container: Option<String>,
    /// The service's port.
    pub port: Option<u16>,
    /// The opener.
    pub direction: Option<Direction>,
}

/// The result of `POST /v1/congestion/move`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CongestionMoved {
    /// Connections that have another algorithm now.
    pub moved: u64,
    /// The connections that could not be reached.
    pub failures: Vec<String>,
}

impl Client {
    /// The rules of congestion control.
    ///
    /// # Errors
    /// [`ClientError`], as for every call below.
    pub fn congestion(&self) -> Result<CongestionView, ClientError> {
        self.get("/v1/congestion")
    }

    /// The rule of a connection, and the reason for it.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn congestion_explain(&self, query: &CongestionQuery) -> Result<Explained, ClientError> {
        let mut path = format!("/v1/congestion/explain?to={}", segment(&query.to.to_string()));
        if let Some(name) = &query.container {
            path += &format!("&container={}", segment(name));
        }
        if let Some(port) = query.port {
            path += &format!("&port={port}");
        }
        if let Some(direction) = query.direction {
            path += &format!("&direction={direction}");
        }
        self.get(&path)
    }

    /// The connections that ended last, the newest at the end.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn congestion_flows(&self) -> Result<Vec<FlowRecord>, ClientError> {
        self.get("/v1/congestion/flows")
    }

    /// Completion times by destination, size and algorithm.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn congestion_stats(&self) -> Result<StatsView, ClientError> {
        self.get("/v1/congestion/stats")
    }

    /// Sets a rule at run time; it outlives the agent.
    ///
    /// # Errors
    /// [`ClientError`]: an algorithm that the kernel lacks, a network that is no destination, a rule
    /// about the same connections under another name.
    pub fn congestion_set(&self, rule: &Rule) -> Result<CongestionRule, ClientError> {
        self.call(Method::POST, "/v1/congestion/rules", Some(rule))
    }

    /// Takes back the rule about the same connections that was set at run time.
    ///
    /// # Errors
    /// [`ClientError`] if no such rule exists.
    pub fn congestion_unset(&self, about: &Rule) -> Result<CongestionView, ClientError> {
        self.call(Method::DELETE, "/v1/congestion/rules", Some(about))
    }

    /// The results of trials.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn congestion_advice(&self) -> Result<Vec<AdviceView>, ClientError> {
        self.get("/v1/congestion/advice")
    }

    /// Has trials go on differently.
    ///
    /// # Errors
    /// [`ClientError`]: there is no such network.
    pub fn congestion_advise(&self, request: &AdviceRequest) -> Result<Vec<AdviceView>, ClientError> {
        self.call(Method::POST, "/v1/congestion/advice", Some(request))
    }

    /// Has the connections that are there already follow the rules too.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn congestion_move(&self) -> Result<CongestionMoved, ClientError> {
        self.call(Method::POST, "/v1/congestion/move", None::<&()>)
    }
}
