//! The paper's Fig. 3 in `tc`'s form: HTB with one class an agreement, found by the port.

use std::fmt::Write as _;

use weir_netlab::topology::UPLINK;
use weir_units::BitRate;

/// The lines for `tc -batch`.
///
/// - `agreements`: the service's port and its rate, which is also its ceiling.
/// - `other`: the rate and ceiling of all other traffic. Without it there is no such class, and HTB passes
///   packets that match no filter unshaped. That is experiment D.
/// - `sfq`: whether this kernel has SFQ, which the paper's leaves hold. A class holds one consumer, so SFQ
///   makes no difference here.
///
/// The script leaves bursts and quanta to tc, as in the paper.
#[must_use]
pub(crate) fn script(
    link: BitRate,
    agreements: &[(u16, BitRate)],
    other: Option<BitRate>,
    sfq: bool,
) -> String {
    let link = link.bits_per_sec();
    let default = other.map_or(String::new(), |_| " default 2".to_owned());
    let mut text = format!(
        "qdisc add dev {UPLINK} root handle 1: htb{default}\n\
         class add dev {UPLINK} parent 1: classid 1:1 htb rate {link}bit ceil {link}bit\n"
    );
    let leaf = |text: &mut String, minor: usize, rate: BitRate| {
        let rate = rate.bits_per_sec().max(8);
        let _ = writeln!(
            text,
            "class add dev {UPLINK} parent 1:1 classid 1:{minor:x} htb rate {rate}bit ceil {rate}bit"
        );
        if sfq {
            let _ = writeln!(text, "qdisc add dev {UPLINK} parent 1:{minor:x} sfq");
        }
    };
    if let Some(other) = other {
        leaf(&mut text, 2, other);
    }
    for (index, (_, rate)) in agreements.iter().enumerate() {
        leaf(&mut text, index + 16, *rate);
    }
    for (index, (port, _)) in agreements.iter().enumerate() {
        let _ = writeln!(
            text,
            "filter add dev {UPLINK} parent 1: protocol ip prio 1 u32 match ip protocol 6 0xff match ip sport {port} 0xffff flowid 1:{:x}",
            index + 16
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_is_the_papers_figure_3() {
        let agreements = [(8001, BitRate::mbit(19)), (8002, BitRate::mbit(19))];
        let text = script(BitRate::mbit(100), &agreements, Some(BitRate::mbit(5)), false);
        assert_eq!(
            text.lines().collect::<Vec<_>>(),
            [
                "qdisc add dev up0 root handle 1: htb default 2",
                "class add dev up0 parent 1: classid 1:1 htb rate 100000000bit ceil 100000000bit",
                "class add dev up0 parent 1:1 classid 1:2 htb rate 5000000bit ceil 5000000bit",
                "class add dev up0 parent 1:1 classid 1:10 htb rate 19000000bit ceil 19000000bit",
                "class add dev up0 parent 1:1 classid 1:11 htb rate 19000000bit ceil 19000000bit",
                "filter add dev up0 parent 1: protocol ip prio 1 u32 match ip protocol 6 0xff match ip sport 8001 0xffff flowid 1:10",
                "filter add dev up0 parent 1: protocol ip prio 1 u32 match ip protocol 6 0xff match ip sport 8002 0xffff flowid 1:11",
            ]
        );
        let without = script(BitRate::mbit(100), &agreements, None, true);
        assert!(!without.contains("default") && without.contains("parent 1:10 sfq"), "{without}");
    }
}
