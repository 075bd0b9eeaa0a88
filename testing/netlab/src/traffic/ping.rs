//! Round trips as iputils' ping prints them.

/// Round-trip times of one container, ms, in the order they were sent, and what was lost.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct Rtts {
    /// Milliseconds.
    pub ms: Vec<f64>,
    /// Probes sent.
    pub sent: u64,
    /// Probes answered.
    pub received: u64,
}

/// Reads ping's output; the first `skip` probes are left out of the times.
pub(super) fn parse(text: &str, skip: u64) -> Rtts {
    let mut rtts = Rtts::default();
    for line in text.lines() {
        if let Some((seq, ms)) = reply(line) {
            if seq > skip {
                rtts.ms.push(ms);
            }
        } else if let Some((sent, received)) = summary(line) {
            (rtts.sent, rtts.received) = (sent, received);
        }
    }
    rtts
}

/// `64 bytes from 10.9.0.2: icmp_seq=7 ttl=64 time=0.023 ms`
fn reply(line: &str) -> Option<(u64, f64)> {
    let field = |name: &str| line.split_whitespace().find_map(|word| word.strip_prefix(name));
    Some((field("icmp_seq=")?.parse().ok()?, field("time=")?.parse().ok()?))
}

/// `10 packets transmitted, 9 received, 10% packet loss, time 213ms`
fn summary(line: &str) -> Option<(u64, u64)> {
    let mut words = line.split_once(" packets transmitted, ").map(|(sent, rest)| (sent, rest.split(' ')))?;
    Some((words.0.trim().parse().ok()?, words.1.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = include_str!("samples/ping.txt");

    #[test]
    fn round_trips_are_read_in_order_and_the_first_left_out() {
        let all = parse(SAMPLE, 0);
        assert_eq!((all.sent, all.received, all.ms.len()), (10, 10, 10));
        assert_eq!(all.ms[0], 0.326);
        assert_eq!(parse(SAMPLE, 8).ms, [0.026, 0.020]);
    }

    #[test]
    fn what_is_not_a_reply_is_not_counted() {
        let text = "From 10.9.0.1 icmp_seq=4 Destination Host Unreachable\n\
                    5 packets transmitted, 0 received, +1 errors, 100% packet loss, time 80ms\n";
        assert_eq!(parse(text, 0), Rtts { ms: vec![], sent: 5, received: 0 });
    }
}
