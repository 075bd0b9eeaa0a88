//! Promised bandwidth: the experiments of Anastasi et al., "QoS Guarantees for Network Bandwidth in Private
//! Clouds" (2016), Table 1 and 2, Fig. 4 to 6.
//!
//! A service in the node rotates pictures for five consumers behind the line. Each consumer has its own port
//! and its own rate. Beside the service, a task sends as much UDP as the line holds. The measured time is the
//! transmission of an answer, from its first byte to its last: ApacheBench's `dtime - wait`.
//!
//! An agreement's rate counts layer 2, like tc and weir. The ideal time is S / bw. S is the answer with its
//! HTTP head and the headers of its segments, without the bytes that arrived before the clock started. Those
//! are one frame, or several if the consumer was not running.
//!
//! The paper's S is the picture alone, 419 KiB; headers add 4.6 %. Its kernel (2.6.28) did not charge HTB for
//! the headers of a super-packet's segments. The error against the picture alone is shown, but not judged.

mod consumer;
mod guest;
mod measure;
mod plot;
mod promise;
mod report;
mod scenario;
mod service;
mod show;
mod tree;

pub(crate) use guest::harness;
pub(crate) use measure::run;
pub(crate) use scenario::Scenario;
