use std::{
    net::Ipv4Addr,
    os::fd::{AsFd, AsRawFd},
};

use ipnet::IpNet;
use netlink_packet_core::{Emitable, NLM_F_CREATE, NLM_F_EXCL, Parseable};
use netlink_packet_route::{
    address::{AddressAttribute, AddressMessage},
    link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage},
    nsid::{NsidAttribute, NsidMessage},
};

use weir_units::Bytes;

use super::{
    Attrs, Netlink, NetlinkError, Request,
    attrs::{attributes, u64_of},
};

const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const RTM_GETNSID: u16 = 90;
const IFLA_NUM_TX_QUEUES: u16 = 31;

/// A network interface of this namespace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Link {
    /// Its index.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// `veth`, `bridge`, `ifb`, ...; none for a real device.
    pub kind: Option<String>,
    /// For a veth: its peer's index, in the peer's namespace.
    pub peer_index: Option<u32>,
    /// For a veth: the peer's namespace as this namespace numbers it; none if it is this one.
    pub peer_netnsid: Option<i32>,
    /// The bridge or bond it belongs to.
    pub master: Option<u32>,
    /// Largest packet, bytes without the Ethernet header.
    pub mtu: u32,
    /// Administratively up.
    pub up: bool,
    /// Alias, free text.
    pub alias: Option<String>,
    /// Hardware address.
    pub mac: Vec<u8>,
    /// Transmit queues.
    pub queues: u32,
}

impl Link {
    /// Packets begin with an Ethernet header. Tunnels, PPP and raw IP have no hardware address, or
    /// one of another length.
    #[must_use]
    pub fn has_ethernet(&self) -> bool {
        self.mac.len() == 6
    }
}

/// The packets and bytes that an interface has sent, as its driver counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sent {
    /// Packets; a driver may count a super-packet as one.
    pub packets: u64,
    /// Their bytes.
    pub bytes: Bytes,
}

/// An address of this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct InterfaceAddress {
    /// The index of its interface.
    pub index: u32,
    /// The address, and the length of its network's prefix.
    pub net: IpNet,
}

fn ifinfo(index: u32, flags: u32, change: u32) -> [u8; 16] {
    let mut header = [0; 16];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..16].copy_from_slice(&change.to_ne_bytes());
    header
}

impl Netlink {
    /// All interfaces of this namespace.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn links(&mut self) -> Result<Vec<Link>, NetlinkError> {
        let mut links = Vec::new();
        let request = Request {
            kind: RTM_GETLINK,
            flags: 0,
            body: ifinfo(0, 0, 0).to_vec(),
            what: "list links".into(),
        };
        self.dump(request, |kind, body| {
            if kind == RTM_NEWLINK
                && let Some(link) = parse_link(body)
            {
                links.push(link);
            }
        })?;
        Ok(links)
    }

    /// The interface of this name.
    ///
    /// # Errors
    /// [`NetlinkError`], `ENODEV` without such a link.
    pub fn link(&mut self, name: &str) -> Result<Link, NetlinkError> {
        const IFLA_IFNAME: u16 = 3;
        let mut body = Attrs::after(&ifinfo(0, 0, 0));
        body.put_str(IFLA_IFNAME, name);
        let what = format!("find device {name}");
        let answer =
            self.get(&Request { kind: RTM_GETLINK, flags: 0, body: body.into_bytes(), what: what.clone() })?;
        parse_link(&answer).ok_or_else(|| NetlinkError::Garbled { what, detail: "not a link message".into() })
    }

    /// The count of what the interface of this name has sent.
    ///
    /// # Errors
    /// [`NetlinkError`], `ENODEV` without such a link.
    pub fn sent(&mut self, name: &str) -> Result<Sent, NetlinkError> {
        const IFLA_IFNAME: u16 = 3;
        const IFLA_STATS64: u16 = 23;
        const HEADER: usize = 16;
        let mut body = Attrs::after(&ifinfo(0, 0, 0));
        body.put_str(IFLA_IFNAME, name);
        let what = format!("count what device {name} has sent");
        let request = Request { kind: RTM_GETLINK, flags: 0, body: body.into_bytes(), what: what.clone() };
        let answer = self.get(&request)?;
        // struct rtnl_link_stats64: rx_packets, tx_packets, rx_bytes, tx_bytes.
        let found = attributes(answer.get(HEADER..).unwrap_or_default())
            .find(|(kind, value)| *kind == IFLA_STATS64 && value.len() >= 32);
        match found {
            Some((_, stats)) => Ok(Sent { packets: u64_of(&stats[8..]), bytes: Bytes(u64_of(&stats[24..])) }),
            None => Err(NetlinkError::Garbled { what, detail: "the answer has no counters".into() }),
        }
    }

    /// Addresses of this namespace's interfaces.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn addresses(&mut self) -> Result<Vec<InterfaceAddress>, NetlinkError> {
        let mut addresses = Vec::new();
        let what = "list addresses".into();
        let request = Request { kind: RTM_GETADDR, flags: 0, body: vec![0; 8], what };
        self.dump(request, |_, body| addresses.extend(parse_address(body)))?;
        Ok(addresses)
    }

    /// The first addresses of another namespace's interfaces, at most `most`, and whether there are more. `nsid` is this
    /// namespace's number for it ([`Netlink::nsid_of`]). The socket must be of [`Netlink::open_strict`].
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn addresses_in(
        &mut self,
        nsid: i32,
        most: usize,
    ) -> Result<(Vec<InterfaceAddress>, bool), NetlinkError> {
        const IFA_TARGET_NETNSID: u16 = 10;
        let mut body = Attrs::after(&[0; 8]);
        body.put_u32(IFA_TARGET_NETNSID, nsid.cast_unsigned());
        let what = format!("list addresses of namespace {nsid}");
        let request = Request { kind: RTM_GETADDR, flags: 0, body: body.into_bytes(), what };
        let (first, are_more) = self.first_of_dump(&request, most)?;
        Ok((first.iter().filter_map(|body| parse_address(body)).collect(), are_more))
    }

    /// The number by which this namespace knows another one (an open namespace file);
    /// none if it has not been given one, which means that no link leads there.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn nsid_of(&mut self, netns: &impl AsFd) -> Result<Option<i32>, NetlinkError> {
        let mut message = NsidMessage::default();
        let fd = u32::try_from(netns.as_fd().as_raw_fd()).unwrap_or(u32::MAX);
        message.attributes.push(NsidAttribute::Fd(fd));
        let mut body = vec![0; message.buffer_len()];
        message.emit(&mut body);
        let what = "ask for a namespace's number".to_owned();
        let answer = self.get(&Request { kind: RTM_GETNSID, flags: 0, body, what: what.clone() })?;
        let answer =
            NsidMessage::parse(&answer).map_err(|e| NetlinkError::Garbled { what, detail: e.to_string() })?;
        Ok(answer.attributes.iter().find_map(|a| match a {
            NsidAttribute::Id(id) if *id >= 0 => Some(*id),
            _ => None,
        }))
    }

    /// Creates an ifb device with this hardware address and number of transmit queues, writes its purpose to
    /// its alias and sets it up. The kernel takes the address together with the device, and the alias only
    /// after it.
    ///
    /// # Errors
    /// [`NetlinkError`]: `EEXIST` if the name is taken, `EOPNOTSUPP` without `CONFIG_IFB`.
    pub fn add_ifb(
        &mut self,
        name: &str,
        alias: &str,
        mac: [u8; 6],
        queues: u32,
    ) -> Result<u32, NetlinkError> {
        self.add_device("ifb", name, alias, mac, queues)
    }

    /// Creates a macvtap device on top of another one, names its purpose in its alias and sets it up.
    /// `queue_len`: packets that each of its queues holds.
    ///
    /// # Errors
    /// [`NetlinkError`]: `EEXIST` if the name is taken, `EOPNOTSUPP` without `CONFIG_MACVTAP`.
    pub fn add_macvtap(
        &mut self,
        name: &str,
        alias: &str,
        below: u32,
        queue_len: u32,
    ) -> Result<u32, NetlinkError> {
        const IFLA_IFNAME: u16 = 3;
        const IFLA_LINK: u16 = 5;
        const IFLA_TXQLEN: u16 = 13;
        const IFLA_LINKINFO: u16 = 18;
        const IFLA_IFALIAS: u16 = 20;
        const IFLA_INFO_KIND: u16 = 1;
        const IFLA_INFO_DATA: u16 = 2;
        const IFLA_MACVLAN_MODE: u16 = 1;
        const MACVLAN_MODE_PRIVATE: u32 = 1;
        let mut body = Attrs::after(&ifinfo(0, 0, 0));
        body.put_str(IFLA_IFNAME, name).put_u32(IFLA_LINK, below).put_u32(IFLA_TXQLEN, queue_len).nest(
            IFLA_LINKINFO,
            |info| {
                info.put_str(IFLA_INFO_KIND, "macvtap").nest(IFLA_INFO_DATA, |data| {
                    data.put_u32(IFLA_MACVLAN_MODE, MACVLAN_MODE_PRIVATE);
                });
            },
        );
        self.call(Request {
            kind: RTM_NEWLINK,
            flags: NLM_F_CREATE | NLM_F_EXCL,
            body: body.into_bytes(),
            what: format!("create macvtap device {name} (needs CONFIG_MACVTAP, `modprobe macvtap`)"),
        })?;
        let index = self.link(name)?.index;
        let mut body = Attrs::after(&ifinfo(index, 0, 0));
        body.put(IFLA_IFALIAS, alias.as_bytes());
        let what = format!("name the purpose of device {name}");
        self.call(Request { kind: RTM_NEWLINK, flags: 0, body: body.into_bytes(), what })?;
        Ok(index)
    }

    fn add_device(
        &mut self,
        kind: &str,
        name: &str,
        alias: &str,
        mac: [u8; 6],
        queues: u32,
    ) -> Result<u32, NetlinkError> {
        const IFLA_ADDRESS: u16 = 1;
        const IFLA_IFNAME: u16 = 3;
        const IFLA_LINKINFO: u16 = 18;
        const IFLA_IFALIAS: u16 = 20;
        const IFLA_INFO_KIND: u16 = 1;
        let mut body = Attrs::after(&ifinfo(0, 0, 0));
        body.put(IFLA_ADDRESS, &mac).put_str(IFLA_IFNAME, name).put_u32(IFLA_NUM_TX_QUEUES, queues).nest(
            IFLA_LINKINFO,
            |info| {
                info.put_str(IFLA_INFO_KIND, kind);
            },
        );
        self.call(Request {
            kind: RTM_NEWLINK,
            flags: NLM_F_CREATE | NLM_F_EXCL,
            body: body.into_bytes(),
            what: format!(
                "create {kind} device {name} (needs CONFIG_{}, `modprobe {kind}`)",
                kind.to_ascii_uppercase()
            ),
        })?;
        let index = self.link(name)?.index;
        let up = LinkFlags::Up.bits();
        let mut body = Attrs::after(&ifinfo(index, up, up));
        body.put(IFLA_IFALIAS, alias.as_bytes());
        self.call(Request {
            kind: RTM_NEWLINK,
            flags: 0,
            body: body.into_bytes(),
            what: format!("set device {name} up"),
        })?;
        Ok(index)
    }

    /// Makes a veth pair, one end here, the other in another namespace; returns this end's
    /// index. Both are down.
    ///
    /// # Errors
    /// [`NetlinkError`]: `EEXIST` if a name is taken, `EOPNOTSUPP` without `CONFIG_VETH`.
    pub fn add_veth(&mut self, name: &str, peer: &str, netns: &impl AsFd) -> Result<u32, NetlinkError> {
        const IFLA_IFNAME: u16 = 3;
        const IFLA_LINKINFO: u16 = 18;
        const IFLA_NET_NS_FD: u16 = 28;
        const IFLA_INFO_KIND: u16 = 1;
        const IFLA_INFO_DATA: u16 = 2;
        const VETH_INFO_PEER: u16 = 1;
        let mut other = Attrs::after(&ifinfo(0, 0, 0));
        let netns = netns.as_fd().as_raw_fd().cast_unsigned();
        other.put_str(IFLA_IFNAME, peer).put_u32(IFLA_NET_NS_FD, netns);
        let other = other.into_bytes();
        let mut body = Attrs::after(&ifinfo(0, 0, 0));
        body.put_str(IFLA_IFNAME, name).nest(IFLA_LINKINFO, |info| {
            info.put_str(IFLA_INFO_KIND, "veth").nest(IFLA_INFO_DATA, |data| {
                data.put(VETH_INFO_PEER, &other);
            });
        });
        self.call(Request {
            kind: RTM_NEWLINK,
            flags: NLM_F_CREATE | NLM_F_EXCL,
            body: body.into_bytes(),
            what: format!("create veth pair {name}, {peer} (needs CONFIG_VETH, `modprobe veth`)"),
        })?;
        Ok(self.link(name)?.index)
    }

    /// Gives an interface an IPv4 address; `len` is its network's prefix length, bits.
    ///
    /// # Errors
    /// [`NetlinkError`]: `EEXIST` if it has it.
    pub fn add_address(&mut self, index: u32, address: Ipv4Addr, len: u8) -> Result<(), NetlinkError> {
        const IFA_ADDRESS: u16 = 1;
        const IFA_LOCAL: u16 = 2;
        let family = u8::try_from(libc::AF_INET).unwrap_or(2);
        let mut header = [family, len, 0, 0, 0, 0, 0, 0];
        header[4..].copy_from_slice(&index.to_ne_bytes());
        let mut body = Attrs::after(&header);
        body.put(IFA_LOCAL, &address.octets()).put(IFA_ADDRESS, &address.octets());
        self.call(Request {
            kind: RTM_NEWADDR,
            flags: NLM_F_CREATE | NLM_F_EXCL,
            body: body.into_bytes(),
            what: format!("give interface {index} the address {address}/{len}"),
        })
    }

    /// Sets an interface up.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn set_up(&mut self, index: u32, name: &str) -> Result<(), NetlinkError> {
        let up = LinkFlags::Up.bits();
        self.call(Request {
            kind: RTM_NEWLINK,
            flags: 0,
            body: ifinfo(index, up, up).to_vec(),
            what: format!("set device {name} up"),
        })
    }

    /// Deletes an interface; one that is gone already is no error.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn delete_link(&mut self, index: u32, name: &str) -> Result<(), NetlinkError> {
        let request = Request {
            kind: RTM_DELLINK,
            flags: 0,
            body: ifinfo(index, 0, 0).to_vec(),
            what: format!("delete device {name}"),
        };
        match self.call(request) {
            Err(e) if e.is_gone() => Ok(()),
            other => other,
        }
    }
}

/// `None` if it is no message of an address.
fn parse_address(body: &[u8]) -> Option<InterfaceAddress> {
    let message = AddressMessage::parse(body).ok()?;
    let mut address = None;
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(a) => address = Some(*a),
            AddressAttribute::Address(a) => address = address.or(Some(*a)),
            _ => {}
        }
    }
    let net = IpNet::new(address?, message.header.prefix_len).ok()?;
    Some(InterfaceAddress { index: message.header.index, net })
}

fn parse_link(body: &[u8]) -> Option<Link> {
    let message = LinkMessage::parse(body).ok()?;
    let mut link = Link {
        index: message.header.index,
        up: message.header.flags.contains(LinkFlags::Up),
        ..Link::default()
    };
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name = name,
            LinkAttribute::Link(peer) => link.peer_index = Some(peer),
            LinkAttribute::LinkNetNsId(id) => link.peer_netnsid = Some(id),
            LinkAttribute::Controller(master) => link.master = Some(master),
            LinkAttribute::Mtu(mtu) => link.mtu = mtu,
            LinkAttribute::NumTxQueues(queues) => link.queues = queues,
            LinkAttribute::IfAlias(alias) => link.alias = Some(alias),
            LinkAttribute::Address(mac) => link.mac = mac,
            LinkAttribute::LinkInfo(infos) => {
                link.kind = infos.iter().find_map(|info| match info {
                    LinkInfo::Kind(InfoKind::Veth) => Some("veth".to_owned()),
                    LinkInfo::Kind(kind) => Some(kind.to_string()),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    Some(link)
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write as _,
        process::{Command, Stdio},
    };

    use super::*;

    #[test]
    fn count_of_what_was_sent_is_that_of_the_device() {
        let mut netlink = Netlink::open().unwrap();
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let before = netlink.sent("lo").unwrap();
        for _ in 0..100 {
            socket.send_to(&[0; 1_000], socket.local_addr().unwrap()).unwrap();
        }
        let after = netlink.sent("lo").unwrap();
        assert!(after.packets >= before.packets + 100, "{before:?}, then {after:?}");
        assert!(after.bytes.0 >= before.bytes.0 + 100 * 1_028, "{before:?}, then {after:?}");
        assert!(netlink.sent("nosuch0").unwrap_err().is_gone());
    }

    /// Every kernel lacks some kind of device: to it, this one is what ifb is to a kernel
    /// without `CONFIG_IFB`.
    #[test]
    fn a_kernel_without_the_device_is_told_what_it_lacks() {
        let made = std::thread::spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).ok()?;
            Some(Netlink::open().unwrap().add_device("nosuch", "weir0", "alias", [2; 6], 1))
        });
        let Some(made) = made.join().unwrap() else {
            println!("SKIPPED: making a network namespace needs CAP_SYS_ADMIN");
            return;
        };
        let error = made.unwrap_err();
        assert_eq!(error.errno(), Some(nix::errno::Errno::EOPNOTSUPP));
        let text = error.to_string();
        let wanted = "cannot create nosuch device weir0 (needs CONFIG_NOSUCH, `modprobe nosuch`): ";
        assert!(text.starts_with(wanted), "{text}");
    }

    /// Addresses of a namespace of another process, of which only the first are read.
    #[test]
    fn few_of_many_addresses_of_another_namespace_are_read() {
        let made = std::thread::spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).ok()?;
            let own = std::fs::read_link("/proc/thread-self/ns/net").unwrap();
            let mut inside = Command::new("unshare").args(["--net", "sleep", "60"]).spawn().unwrap();
            let netns = format!("/proc/{}/ns/net", inside.id());
            while std::fs::read_link(&netns).unwrap() == own {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            let pid = inside.id().to_string();
            let ip =
                |arguments: &[&str]| assert!(Command::new("ip").args(arguments).status().unwrap().success());
            ip(&["link", "add", "v0", "type", "veth", "peer", "name", "p0", "netns", &pid]);
            let lines: String =
                (0..300).map(|n| format!("addr add 10.9.{}.{}/32 dev p0\n", n / 200, n % 200)).collect();
            let mut batch = Command::new("nsenter")
                .args(["-t", &pid, "-n", "ip", "-batch", "-"])
                .stdin(Stdio::piped())
                .spawn()
                .unwrap();
            batch.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
            assert!(batch.wait().unwrap().success());
            let mut netlink = Netlink::open_strict().unwrap();
            let nsid = netlink.nsid_of(&std::fs::File::open(&netns).unwrap()).unwrap().unwrap();
            let read = [100, 299, 300, 1000].map(|most| {
                let (addresses, are_more) = netlink.addresses_in(nsid, most).unwrap();
                (addresses.len(), are_more)
            });
            inside.kill().unwrap();
            inside.wait().unwrap();
            Some(read)
        });
        let Some(read) = made.join().unwrap() else {
            println!("SKIPPED: making a network namespace needs CAP_SYS_ADMIN");
            return;
        };
        assert_eq!(read, [(100, true), (299, true), (300, false), (300, false)]);
    }

    #[test]
    fn the_loopback_device_is_found() {
        let mut netlink = Netlink::open().unwrap();
        let lo = netlink.link("lo").unwrap();
        assert_eq!(lo.index, 1);
        assert!(netlink.links().unwrap().contains(&lo));
        let error = netlink.link("no-such-dev").unwrap_err();
        assert_eq!(error.errno(), Some(nix::errno::Errno::ENODEV));
        assert!(error.to_string().starts_with("cannot find device no-such-dev: "), "{error}");
    }
}
