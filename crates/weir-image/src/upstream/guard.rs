//! Addresses that are never asked: a request must not reach what only this node may reach.

use std::{
    future::Future,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    pin::Pin,
    task::{Context, Poll},
    vec,
};

use hyper_util::client::legacy::connect::dns::Name;

/// Resolves names, and gives only addresses that may be asked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Guard {
    /// Also addresses of private networks and of this machine: of registries the operator has named.
    pub(super) private: bool,
}

impl Guard {
    /// Why an address is not asked; `None` if it may be.
    pub(super) fn refuses(self, ip: IpAddr) -> Option<&'static str> {
        let ip = match ip {
            IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(ip, IpAddr::V4),
            IpAddr::V4(_) => ip,
        };
        let (never, private) = match ip {
            IpAddr::V4(v4) => (
                v4.is_link_local()
                    || v4.is_multicast()
                    || v4.is_unspecified()
                    || v4.is_broadcast()
                    || v4 == Ipv4Addr::new(100, 100, 100, 200),
                v4.is_loopback() || v4.is_private() || (v4.octets()[0] == 100 && v4.octets()[1] & 0xc0 == 64),
            ),
            IpAddr::V6(v6) => (
                v6.is_unicast_link_local()
                    || v6.is_multicast()
                    || v6.is_unspecified()
                    || v6 == Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
                v6.is_loopback() || v6.is_unique_local(),
            ),
        };
        if never {
            return Some("it is a link-local, metadata or multicast address");
        }
        (private && !self.private)
            .then_some("it is at a private address, and no [[images.upstream]] of the configuration names it")
    }
}

type Resolved = Pin<Box<dyn Future<Output = io::Result<vec::IntoIter<SocketAddr>>> + Send>>;

impl tower_service::Service<Name> for Guard {
    type Response = vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = Resolved;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Resolved {
        let guard = *self;
        Box::pin(async move {
            let all = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let (mut good, mut why) = (Vec::new(), None);
            for address in all {
                match guard.refuses(address.ip()) {
                    None => good.push(address),
                    Some(reason) => why = Some(reason),
                }
            }
            match why {
                Some(reason) if good.is_empty() => Err(io::Error::new(
                    io::ErrorKind::PermissionDenied,
                    format!("{} is refused: {reason}", name),
                )),
                _ => Ok(good.into_iter()),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_local_and_metadata_addresses_are_refused_always_and_private_ones_unless_named() {
        let (open, closed) = (Guard { private: true }, Guard { private: false });
        for never in [
            "169.254.169.254",
            "fe80::1",
            "0.0.0.0",
            "::",
            "224.0.0.1",
            "100.100.100.200",
            "::ffff:169.254.1.1",
            "fd00:ec2::254",
        ] {
            let ip = never.parse().unwrap();
            assert!(open.refuses(ip).is_some() && closed.refuses(ip).is_some(), "{never}");
        }
        for private in [
            "127.0.0.1",
            "10.1.2.3",
            "192.168.0.1",
            "172.16.0.1",
            "::1",
            "fd12::1",
            "100.64.0.1",
            "::ffff:127.0.0.1",
        ] {
            let ip = private.parse().unwrap();
            assert!(open.refuses(ip).is_none() && closed.refuses(ip).is_some(), "{private}");
        }
        assert!(closed.refuses("140.82.121.33".parse().unwrap()).is_none());
    }
}
