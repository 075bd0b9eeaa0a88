use std::net::IpAddr;

use hyper::Method;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use weir_cc::{AdviceView, Direction, Explained, FlowRecord, Origin, Rule, StatsView};

use crate::{Client, ClientError, client::segment};

/// A rule of congestion control, and the classes it applies to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CongestionRule {
    /// Position in the configuration, from 1.
    pub number: usize,
    /// The connections it names: `container web to 10.0.0.0/8 port 443 out`.
    pub connections: String,
    /// The algorithms it gives them: `bbr, cubic after 1MiB`.
    pub action: String,
    /// The classes whose sockets it applies to; empty means all.
    pub classes: Vec<String>,
    /// The reason if it applies to no connection now.
    pub problem: Option<String>,
    /// The origin of the rule.
    #[serde(default)]
    pub origin: Origin,
}

/// An order about trials: `POST /v1/congestion/advice`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AdviceRequest {
    /// The destination network; `None` means all.
    #[cfg_attr(feature = "schema", schemars(with = "Option<String>"))]
    pub to: Option<IpNet>,
    /// The order.
    pub verb: AdviceVerb,
}

/// The order of an [`AdviceRequest`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum AdviceVerb {
    /// Makes the best algorithm the rule.
    Apply,
    /// Only recommends the best algorithm.
    Hold,
    /// Withdraws the rule that the advice became.
    Rollback,
    /// Forgets the results and starts again.
    Again,
}

/// The rules of congestion control, with their counters since the agent first had rules.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CongestionView {
    /// The rules of the configuration.
    pub rules: Vec<CongestionRule>,
    /// The algorithms that the kernel has loaded.
    pub available: Vec<String>,
    /// The reason if the rules are not fully in force.
    pub not_enforced_because: Option<String>,
    /// Connections that were given the algorithm of a rule.
    pub set: u64,
    /// Changes of algorithm during a connection.
    pub switched: u64,
    /// Existing connections that were moved on request.
    pub moved: u64,
    /// Algorithms that the kernel refused.
    pub failed: u64,
    /// Connections that have ended.
    pub ended: u64,
    /// Ended connections that tried another algorithm.
    #[serde(default)]
    pub tried: u64,
    /// Ended connections whose records the agent did not read in time.
    pub lost: u64,
    /// How often applications announced the size of their transfer.
    #[serde(default)]
    pub hinted: u64,
}

/// A connection to explain: `GET /v1/congestion/explain?to=10.1.2.3&container=web&port=443`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CongestionQuery {
    /// The far end.
    pub to: IpAddr,
    /// A class, by `name` or `source:name`.
    pub container: Option<String>,
    /// The service's port.
    pub port: Option<u16>,
    /// The side that opened the connection.
    pub direction: Option<Direction>,
}

/// The result of `POST /v1/congestion/move`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct CongestionMoved {
    /// Connections that changed their algorithm.
    pub moved: u64,
    /// Parts that could not be reached.
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

    /// The rule of one connection, with the reason.
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

    /// The connections that ended last, newest at the end.
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

    /// Sets a rule at run time. The rule survives a restart of the agent.
    ///
    /// # Errors
    /// [`ClientError`]: the kernel lacks the algorithm, the network is no destination, or another name
    /// has a rule for the same connections.
    pub fn congestion_set(&self, rule: &Rule) -> Result<CongestionRule, ClientError> {
        self.call(Method::POST, "/v1/congestion/rules", Some(rule))
    }

    /// Removes the rule for the same connections that was set at run time.
    ///
    /// # Errors
    /// [`ClientError`], also if no such rule exists.
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

    /// Gives an order about trials.
    ///
    /// # Errors
    /// [`ClientError`], also if the network is unknown.
    pub fn congestion_advise(&self, request: &AdviceRequest) -> Result<Vec<AdviceView>, ClientError> {
        self.call(Method::POST, "/v1/congestion/advice", Some(request))
    }

    /// Applies the rules to existing connections too.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn congestion_move(&self) -> Result<CongestionMoved, ClientError> {
        self.call(Method::POST, "/v1/congestion/move", None::<&()>)
    }
}
