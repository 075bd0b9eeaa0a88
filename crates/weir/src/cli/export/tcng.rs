//! The configuration language of tcng (Almesberger, "Linux traffic control - next generation",
//! 2002), as in Fig. 3 of "QoS Guarantees for Network Bandwidth in Private Clouds".

use std::fmt::Write as _;

use weir_agree::Direction;
use weir_api::{ClassKind, Export, ExportClass, ExportSelector};

use super::{caveats, ifb, is_about, protocols, quoted, rest, title};

/// Writes a configuration. `date` appears in its first lines.
pub(super) fn script(export: &Export, date: &str) -> String {
    let mut text = format!("/*\n * {}\n *\n", title(export, date));
    for line in caveats(export).into_iter().chain(own_caveats(export)) {
        let _ = writeln!(text, " * - {line}");
    }
    if export.direction == Direction::Download {
        redirect(export, &mut text);
    }
    let device = match export.direction {
        Direction::Upload => export.link.clone(),
        Direction::Download => ifb(export),
    };
    let _ = write!(
        text,
        " */\n#include \"fields.tc\"\n#include \"ports.tc\"\n\ndev \"{device}\" {{\n    egress {{\n"
    );
    by_selector(export, &mut text);
    by_address(export, &mut text);
    if let Some(class) = rest(export) {
        let _ = writeln!(text, "        class (<{}>) if 1;", variable(export, &class.handle));
    }
    let _ = writeln!(text, "\n        htb () {{");
    if let Some(root) = export.classes.first() {
        let _ = writeln!(text, "            class ({}) {{", parameters(root));
        inside(export, root, 4, &mut text);
        let _ = writeln!(text, "            }}");
    }
    text + "        }\n    }\n}\n"
}

/// The limits of tcng.
fn own_caveats(export: &Export) -> Vec<String> {
    let mut lines = vec![match export.direction {
        Direction::Upload => "tcng knows IPv4 only: selectors of IPv6 are left out.",
        Direction::Download => "tcng knows IPv4 only: packets of IPv6 belong to the last class.",
    }];
    if export.direction == Direction::Upload {
        lines.push(
            "It knows no interfaces that packets came from: containers without a known address are the last class's.",
        );
    }
    if !export.exempt.is_empty() {
        lines.push("It has no way past a tree: packets of exempt networks are scheduled too.");
    }
    if export.classes.iter().any(|class| class.largest.is_some()) {
        lines.push("Its queues do not split super-packets, which miss their weights.");
    }
    lines.into_iter().map(str::to_owned).collect()
}

/// Writes the commands that send what arrives through the tree. tcng has no redirection.
fn redirect(export: &Export, text: &mut String) {
    let (link, ifb) = (quoted(&export.link), quoted(&ifb(export)));
    let _ = write!(
        text,
        " *\n * Before it is run: ip link add {ifb} type ifb; ip link set dev {ifb} up\n \
         * After it: tc qdisc replace dev {link} clsact; tc filter add dev {link} ingress protocol all prio 1 u32 \
         match u32 0 0 action mirred egress redirect dev {ifb}\n"
    );
}

/// Writes the conditions of the selectors.
fn by_selector(export: &Export, text: &mut String) {
    for selector in export.selectors.iter().filter(|s| s.from.is_none() && is_about(s, false)) {
        for protocol in protocols(selector) {
            let class = variable(export, &selector.class);
            let _ = writeln!(text, "        class (<{class}>) if {};", condition(selector, protocol));
        }
    }
    for left in export.selectors.iter().filter(|s| s.from.is_some() || !is_about(s, false)) {
        let why = if left.from.is_some() { "of one container only" } else { "of IPv6" };
        let _ =
            writeln!(text, "        /* left out: a selector of {}, {why} */", variable(export, &left.class));
    }
}

/// Writes the conditions of the classes' own addresses.
fn by_address(export: &Export, text: &mut String) {
    let field = match export.direction {
        Direction::Upload => "ip_src",
        Direction::Download => "ip_dst",
    };
    for class in &export.classes {
        for address in class.addresses.iter().filter(|address| address.is_ipv4()) {
            let class = variable(export, &class.handle);
            let _ = writeln!(text, "        class (<{class}>) if {field} == {address};");
        }
    }
}

/// Writes the classes below this one.
fn inside(export: &Export, parent: &ExportClass, depth: usize, text: &mut String) {
    let indent = "    ".repeat(depth);
    for class in export.classes.iter().filter(|class| class.parent == parent.handle) {
        // The control class is left out, because tcng cannot express its filters.
        if class.kind == Some(ClassKind::Control) {
            continue;
        }
        match class.queue {
            Some(queue) => {
                let (name, what) = (variable(export, &class.handle), parameters(class));
                let _ = writeln!(text, "{indent}{name} = class ({what}) {{ fifo (limit {}B); }};", queue.0);
            }
            None => {
                let _ = writeln!(text, "{indent}class ({}) {{", parameters(class));
                inside(export, class, depth + 1, text);
                let _ = writeln!(text, "{indent}}}");
            }
        }
    }
}

fn parameters(class: &ExportClass) -> String {
    let ExportClass { rate, ceil, burst, cburst, quantum, prio, .. } = class;
    let mut text =
        format!("rate {}bps, ceil {}bps, burst {}B, cburst {}B", rate.0, ceil.0, burst.0, cburst.0);
    if class.queue.is_some() {
        let _ = write!(text, ", quantum {}B, prio {prio}", quantum.0);
    }
    text
}

/// A valid tcng name: the class's name with its handle, which makes it unique.
fn variable(export: &Export, handle: &str) -> String {
    let name = export.classes.iter().find(|c| c.handle == *handle).map_or("", |c| c.name.as_str());
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let minor = handle.trim_start_matches("1:");
    format!("${}_{minor}", name.chars().map(plain).collect::<String>())
}

fn condition(selector: &ExportSelector, protocol: Option<u8>) -> String {
    let (transport, mut parts) = match protocol {
        Some(6) => ("tcp", vec!["ip_proto == IPPROTO_TCP".to_owned()]),
        Some(17) => ("udp", vec!["ip_proto == IPPROTO_UDP".to_owned()]),
        // Ports have the same place in SCTP's header as in UDP's.
        Some(other) => ("udp", vec![format!("ip_proto == {other}")]),
        None => ("", Vec::new()),
    };
    for (side, ports) in [("sport", selector.source_ports), ("dport", selector.destination_ports)] {
        match ports {
            Some([first, last]) if first == last => parts.push(format!("{transport}_{side} == {first}")),
            Some([first, last]) => {
                parts.push(format!("{transport}_{side} >= {first} && {transport}_{side} <= {last}"));
            }
            None => {}
        }
    }
    for (side, net) in [("ip_src", &selector.source), ("ip_dst", &selector.destination)] {
        let Some((address, len)) = net.as_ref().and_then(|net| net.split_once('/')) else { continue };
        let len = len.parse::<u32>().unwrap_or(32).min(32);
        let mask = u32::MAX.checked_shl(32 - len).unwrap_or(0);
        parts.push(format!("({side} & {}) == {address}", std::net::Ipv4Addr::from_bits(mask)));
    }
    if let Some(dscp) = selector.dscp {
        parts.push(format!("(ip_tos & 0xfc) == {:#x}", dscp << 2));
    }
    if parts.is_empty() { "1".to_owned() } else { parts.join(" && ") }
}
