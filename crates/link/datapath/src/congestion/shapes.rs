//! Rules and records of `weir_cc` in the form of the kernel's tables, and back.

use weir_bpf::{CongestionRecord, CongestionRule, CongestionTrial, LocalPrefix};
use weir_cc::{Action, Algorithm, Assignment, Direction, FlowRecord, RuleEntry, rule_for};
use weir_units::{BitRate, Bytes};

/// An action in the kernel's form: bytes before the change and segments until then, 0 for none, and
/// the names of its algorithms.
fn action(action: &Action) -> (u64, u32, [u8; 16], [u8; 16]) {
    let change = action.change.as_ref();
    (
        change.map_or(0, |change| change.after.0),
        change.and_then(|change| change.window).map_or(0, u32::from),
        action.start.to_kernel(),
        change.map_or([0; 16], |change| change.to.to_kernel()),
    )
}

/// An entry of the table of rules.
#[must_use]
pub fn rule(entry: &RuleEntry) -> CongestionRule {
    let (after_bytes, window_segments, start, then) = action(&entry.action);
    CongestionRule {
        handle: entry.handle,
        port: entry.port,
        direction: match entry.direction {
            None => 0,
            Some(Direction::Out) => 1,
            Some(Direction::In) => 2,
        },
        to: LocalPrefix { network: entry.to.network(), len: entry.to.prefix_len() },
        rank: entry.rank,
        number: u32::try_from(entry.number).unwrap_or(0),
        after_bytes,
        window_segments,
        start,
        then,
    }
}

/// A turn of a trial.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
#[must_use]
pub fn trial(assignment: &Assignment) -> CongestionTrial {
    let (after_bytes, window_segments, start, then) = action(&assignment.action);
    CongestionTrial {
        to: LocalPrefix { network: assignment.to.network(), len: assignment.to.prefix_len() },
        turn: assignment.turn,
        share: (assignment.share * f64::from(u32::MAX)) as u32,
        tries: assignment.tries,
        slot: assignment.slot as u32,
        rank: rule_for(assignment.to, None).rank(),
        after_bytes,
        window_segments,
        start,
        then,
    }
}

/// A connection that has ended, of the class of that name, when rules of that generation were in force;
/// none if it names what is no algorithm.
#[must_use]
pub fn flow(
    record: &CongestionRecord,
    class: Option<String>,
    ended_ms: u64,
    generation: u32,
) -> Option<FlowRecord> {
    Some(FlowRecord {
        ended_ms,
        class,
        to: record.to,
        remote_port: record.remote_port,
        local_port: record.local_port,
        direction: match record.direction {
            1 => Some(Direction::Out),
            2 => Some(Direction::In),
            _ => None,
        },
        sent: Bytes(record.sent_bytes),
        received: Bytes(record.received_bytes),
        took_us: record.took_ns / 1000,
        first: Algorithm::from_kernel(&record.first)?,
        last: Algorithm::from_kernel(&record.last)?,
        switched_at: (record.switched_bytes > 0).then_some(Bytes(record.switched_bytes)),
        least_rtt_us: record.least_rtt_us,
        smoothed_rtt_us: record.smoothed_rtt_us,
        most_rtt_us: record.most_rtt_us,
        retransmits: record.retransmits,
        delivery_rate: BitRate(record.delivery_rate.saturating_mul(8)),
        rule: (record.number > 0 && record.generation == generation).then_some(record.number as usize),
        tried: record.tried,
    })
}
