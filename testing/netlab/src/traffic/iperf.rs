//! iperf3's JSON, as far as the lab needs it (version 3.9 and later).

use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// One side's account of a test.
#[derive(Debug, Deserialize)]
pub(super) struct Account {
    #[serde(default)]
    intervals: Vec<Interval>,
    #[serde(default)]
    error: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Interval {
    sum: Sum,
}

/// All connections of a flow together, over one interval.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub(super) struct Sum {
    start: f64,
    end: f64,
    bytes: u64,
    #[serde(default)]
    retransmits: u64,
    #[serde(default)]
    packets: u64,
    #[serde(default)]
    lost_packets: u64,
}

/// The counts of one side between two moments of the flow's own clock.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Count {
    /// Length of the intervals counted.
    pub(super) seconds: f64,
    /// Payload.
    pub(super) bytes: u64,
    /// Segments sent again (a TCP sender knows).
    pub(super) retransmits: u64,
    /// Datagrams that were sent, judged by sequence number (a UDP receiver knows).
    pub(super) packets: u64,
    /// Of these, not received.
    pub(super) lost: i64,
    /// Mean payload rate of each interval, Mbit/s.
    pub(super) series: Vec<f64>,
}

impl Count {
    /// Mean payload rate, Mbit/s.
    pub(super) fn mbit(&self) -> f64 {
        if self.seconds > 0.0 { self.bytes as f64 * 8e-6 / self.seconds } else { 0.0 }
    }
}

impl Account {
    pub(super) fn parse(json: &str) -> Result<Account> {
        let account: Account = serde_json::from_str(json).with_context(|| {
            let start: String = json.trim().chars().take(160).collect();
            format!("cannot read iperf3's JSON, which begins `{start}`")
        })?;
        match &account.error {
            Some(error) if account.intervals.is_empty() => bail!("iperf3: {error}"),
            _ => Ok(account),
        }
    }

    /// Sums the whole intervals between `from` and `to`.
    ///
    /// An interval may be reported a little late: half of its length is forgiven at both ends.
    pub(super) fn between(&self, from: Duration, to: Duration) -> Count {
        let mut count = Count::default();
        for Interval { sum } in &self.intervals {
            let seconds = sum.end - sum.start;
            let middle = sum.start + seconds / 2.0;
            // The last report of a test may cover a few microseconds only.
            if middle < from.as_secs_f64() || middle > to.as_secs_f64() || seconds < 1e-3 {
                continue;
            }
            count.seconds += seconds;
            count.bytes += sum.bytes;
            count.retransmits += sum.retransmits;
            count.packets += sum.packets;
            // A datagram that comes late was counted as lost before, and is taken off again.
            count.lost += sum.lost_packets.cast_signed();
            count.series.push(sum.bytes as f64 * 8e-6 / seconds);
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TCP: &str = include_str!("samples/tcp-server.json");
    const UDP: &str = include_str!("samples/udp-server.json");

    fn secs(s: f64) -> Duration {
        Duration::from_secs_f64(s)
    }

    #[test]
    fn the_first_intervals_are_left_out_and_the_rest_summed() {
        let account = Account::parse(TCP).unwrap();
        let all = account.between(secs(0.0), secs(9.0));
        let late = account.between(secs(1.0), secs(1.9));
        assert_eq!(late.series.len(), 2);
        assert!((late.seconds - 1.0).abs() < 0.01, "{late:?}");
        assert!(late.bytes < all.bytes);
        // A 100 Mbit/s line carries 1448 of 1514 bytes as payload.
        assert!((late.mbit() - 95.6).abs() < 1.5, "{}", late.mbit());
    }

    #[test]
    fn udp_loss_is_counted_by_the_receiver() {
        let count = Account::parse(UDP).unwrap().between(secs(0.9), secs(2.0));
        assert!(count.lost > 0 && count.packets.cast_signed() > count.lost, "{count:?}");
        let fraction = count.lost as f64 / count.packets as f64;
        assert!((0.4..0.6).contains(&fraction), "200 Mbit/s into a line of 100: {fraction}");
    }

    #[test]
    fn a_failed_test_says_why() {
        let error = Account::parse(r#"{"start":{},"intervals":[],"end":{},"error":"unable to connect"}"#);
        assert!(error.unwrap_err().to_string().contains("unable to connect"));
        assert!(Account::parse("iperf3: command not found").unwrap_err().to_string().contains("not found"));
    }
}
