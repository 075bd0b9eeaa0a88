//! Two WireGuard devices that are each other's only peer.

use std::process::Command;

use anyhow::{Context, Result};

use super::{MTU, Netns};

/// UDP ports of the two devices, on the loopback device of the namespace between them.
const PORTS: [u16; 2] = [51_820, 51_821];

/// The missing part; none if this machine has all.
pub(super) fn lacks() -> Option<&'static str> {
    if Command::new("wg").arg("--version").output().is_err() {
        return Some("the program wg (wireguard-tools)");
    }
    let name = format!("weirlab-{}-wg", std::process::id());
    let made = Netns::create(&name).is_ok_and(|netns| netns.ip("link add t0 type wireguard\n").is_ok());
    (!made).then_some("the kernel's WireGuard (CONFIG_WIREGUARD)")
}

/// Makes a device at either end. Both are born in namespace `between` and keep their UDP sockets there,
/// so that the ends see no device but their own.
///
/// # Errors
/// If this machine has no WireGuard.
pub(super) fn connect(a: (&Netns, &str), b: (&Netns, &str), between: &Netns) -> Result<()> {
    let [a_port, b_port] = PORTS;
    let script = format!(
        "ip link add wa type wireguard; ip link add wb type wireguard; a=$(wg genkey); b=$(wg genkey)\n\
         peer() {{ echo \"[Interface]\nPrivateKey = $2\nListenPort = $3\n[Peer]\nPublicKey = $(echo $4 | wg pubkey)\n\
         Endpoint = 127.0.0.1:$5\nAllowedIPs = 0.0.0.0/0, ::/0\" | wg setconf $1 /proc/self/fd/0; }}\n\
         peer wa $a {a_port} $b {b_port}; peer wb $b {b_port} $a {a_port}"
    );
    between.exec(&["sh", "-euc", &script]).context("cannot make WireGuard devices (CONFIG_WIREGUARD)")?;
    for (device, (netns, name)) in [("wa", a), ("wb", b)] {
        between.ip(&format!("link set dev {device} netns {} name {name}\n", netns.name()))?;
        netns.ip(&format!("link set dev {name} mtu {MTU} up\n"))?;
    }
    Ok(())
}
