//! Flows by iperf3, the paper's generator.
//!
//! Each direction of a flow has its own server and client. A server has one client at a time, and keeps the
//! settings of one client for the next.
//!
//! The client receives (`-R`), because a test ends when the client has its bytes. A sending client ends when
//! its socket has them, and bytes on their way would not count.
//!
//! iperf3 reports the time itself, without the time to connect and to agree.

use std::{
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use weir_netlab::{
    topology::{Netns, Proc},
    traffic::wait_until_listening,
};

use super::transfer::Transfer;

/// The generator of the flows' bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Generator {
    /// Weir's own: one connection a flow, also in virtual time.
    #[default]
    Own,
    /// iperf3, in real time.
    Iperf3,
}

/// The first server's port; the other servers have the next ports.
const FIRST_PORT: u16 = 20_000;
/// Largest block of one write by iperf3, bytes.
const BLOCK: u64 = 128 << 10;
/// Time limit of a flow.
const FLOW_TIMEOUT: Duration = Duration::from_secs(600);

/// The sender, its address, and the receiver.
pub(super) struct Ends<'a> {
    pub(crate) from: &'a Netns,
    pub(crate) address: Ipv4Addr,
    pub(crate) to: &'a Netns,
}

/// One direction of a flow: its running server, and the arguments of its client.
struct Direction<'a> {
    server: Proc,
    to: &'a Netns,
    arguments: Vec<String>,
    bytes: u64,
    by: Option<&'static str>,
}

/// A flow whose servers are running.
pub(super) struct Prepared<'a> {
    ways: Vec<Direction<'a>>,
}

impl<'a> Prepared<'a> {
    /// Starts the servers of the `nth` flow, up and down.
    ///
    /// # Errors
    /// If iperf3 is missing, or does not listen.
    pub(super) fn start(ends: [Ends<'a>; 2], nth: u16, flow: Transfer) -> Result<Prepared<'a>> {
        let mut ways = Vec::new();
        let asked = [(flow.up, flow.up_by), (flow.down, flow.down_by)];
        for (way, (Ends { from, address, to }, (bytes, by))) in (0..).zip(ends.into_iter().zip(asked)) {
            if bytes == 0 {
                continue;
            }
            let port = FIRST_PORT + 2 * nth + way;
            let mut server = from.spawn(&["iperf3", "-s", "-1", "-p", &port.to_string()])?;
            wait_until_listening(&mut server, port)?;
            ways.push(Direction { server, to, arguments: arguments(address, port, bytes, by), bytes, by });
        }
        Ok(Prepared { ways })
    }

    /// Moves the flow's bytes. Returns the time that it took.
    ///
    /// # Errors
    /// If iperf3 fails, moves less, or uses another algorithm than requested; on Ctrl-C.
    pub(super) fn carry(self) -> Result<Duration> {
        let mut took = 0.0;
        for Direction { mut server, to, arguments, bytes, by } in self.ways {
            let mut client = to.command("iperf3")?;
            client.args(&arguments);
            let deadline = Instant::now() + FLOW_TIMEOUT;
            let said = Proc::start(client)?.finish(deadline)?.stdout;
            took += seconds(&said, bytes, by).with_context(|| format!("iperf3 {}", arguments.join(" ")))?;
            server.finish(deadline)?;
        }
        Ok(Duration::from_secs_f64(took))
    }
}

/// The client's arguments. iperf3 writes whole blocks, so their size is chosen such that they hardly exceed
/// `bytes`.
fn arguments(address: Ipv4Addr, port: u16, bytes: u64, by: Option<&str>) -> Vec<String> {
    let block = bytes.div_ceil(bytes.div_ceil(BLOCK));
    let mut arguments: Vec<String> = ["-J", "-R", "-c", &address.to_string(), "-p", &port.to_string()]
        .into_iter()
        .chain(["-n", &bytes.to_string(), "-l", &block.to_string()])
        .map(str::to_owned)
        .collect();
    if let Some(by) = by {
        arguments.extend(["-C".to_owned(), by.to_owned()]);
    }
    arguments
}

/// The needed part of a client's output with `-J`.
#[derive(Deserialize)]
struct IperfResult {
    end: End,
}

#[derive(Deserialize)]
struct End {
    sum_received: Sum,
    sender_tcp_congestion: Option<String>,
}

#[derive(Deserialize)]
struct Sum {
    seconds: f64,
    bytes: u64,
}

/// Seconds until the last byte was received.
fn seconds(json: &str, bytes: u64, by: Option<&str>) -> Result<f64> {
    let End { sum_received, sender_tcp_congestion } =
        serde_json::from_str::<IperfResult>(json).context("cannot read what iperf3 says")?.end;
    ensure!(sum_received.bytes >= bytes, "{} of {bytes} bytes arrived", sum_received.bytes);
    let used = sender_tcp_congestion.as_deref();
    ensure!(
        by.is_none() || used.is_none() || used == by,
        "{} was used instead of {}",
        used.unwrap_or_default(),
        by.unwrap_or_default()
    );
    Ok(sum_received.seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_asked_for_hardly_more_bytes_than_the_flow_has() {
        for bytes in [1, 1000, BLOCK, BLOCK + 1, 1_234_567, 100_000_000] {
            let words = arguments([192, 0, 2, 1].into(), 20_001, bytes, Some("bbr"));
            let block: u64 = words[words.iter().position(|word| word == "-l").unwrap() + 1].parse().unwrap();
            let sent = bytes.div_ceil(block) * block;
            assert!(
                block <= BLOCK && sent >= bytes && sent - bytes < bytes.div_ceil(BLOCK),
                "{bytes}: {sent}"
            );
            assert!(words.ends_with(&["-C".to_owned(), "bbr".to_owned()]), "{words:?}");
        }
        assert!(!arguments([192, 0, 2, 1].into(), 1, 1, None).contains(&"-C".to_owned()));
    }

    #[test]
    fn iperf3_result_with_less_data_or_another_algorithm_is_refused() {
        let said = |received: u64| {
            format!(
                "{{\"end\":{{\"sum_received\":{{\"seconds\":2.0,\"bytes\":{received}}},\
                 \"sender_tcp_congestion\":\"cubic\"}}}}"
            )
        };
        assert!((seconds(&said(1000), 1000, Some("cubic")).unwrap() - 2.0).abs() < 1e-9);
        assert!((seconds(&said(1000), 1000, None).unwrap() - 2.0).abs() < 1e-9, "a rule's business");
        let error = |json: &str, by| seconds(json, 1000, by).unwrap_err().to_string();
        assert_eq!(error(&said(999), None), "999 of 1000 bytes arrived");
        assert_eq!(error(&said(1000), Some("bbr")), "cubic was used instead of bbr");
        assert!(error("iperf3: error", None).contains("cannot read"));
    }
}
