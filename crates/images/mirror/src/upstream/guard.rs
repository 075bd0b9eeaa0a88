//! Addresses that are never asked: a request must not reach what only this node may reach.

use std::{
    future::Future,
    io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    task::{Context, Poll},
    vec,
};

use hyper::Uri;
use hyper_util::client::legacy::connect::dns::Name;

use super::{
    names::Names,
    special::{AddressClass, classify},
};
use crate::Registry;

/// A host that the operator has named, with the port if it was named too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    host: String,
    port: Option<u16>,
}

impl Place {
    pub(super) fn of(named: &Registry) -> Place {
        Place { host: named.host().to_owned(), port: named.port() }
    }

    /// The place of a URL; none if it has no host.
    pub(super) fn of_url(url: &Uri) -> Option<Place> {
        let usual = if url.scheme_str() == Some("http") { 80 } else { 443 };
        let host = url.host()?.trim_matches(['[', ']']).to_ascii_lowercase();
        Some(Place { host, port: Some(url.port_u16().unwrap_or(usual)) })
    }

    /// Whether a URL leads here.
    pub(super) fn has(&self, url: &Uri) -> bool {
        let at = Place::of_url(url);
        at.is_some_and(|at| at.host == self.host && (self.port.is_none() || self.port == at.port))
    }
}

/// Tells which addresses may be asked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Guard {
    /// Also addresses of private networks and of this node: of places that the operator has named.
    pub(super) private: bool,
}

impl Guard {
    /// Why an address is not asked; `None` if it may be.
    pub(super) fn refuses(self, ip: IpAddr) -> Option<String> {
        let (class, what) = match classify(ip) {
            Some(special) => special,
            None if !self.private && is_own(ip) => (AddressClass::Private, "this node's own"),
            None => return None,
        };
        match class {
            AddressClass::Never => Some(format!("no registry is at {ip}: {what}")),
            AddressClass::Private if self.private => None,
            AddressClass::Private => Some(format!(
                "{ip} is private: {what}; name the host in an [[images.upstream]], or in `redirects` of the one \
                 that sends there"
            )),
        }
    }
}

/// Whether an interface of this node has the address. The kernel is asked each time, as addresses change.
fn is_own(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    let all = nix::ifaddrs::getifaddrs().into_iter().flatten();
    all.filter_map(|interface| interface.address).any(|address| {
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip()))) == Some(ip)
    })
}

type Resolved = Pin<Box<dyn Future<Output = io::Result<vec::IntoIter<SocketAddr>>> + Send>>;

/// Resolves names, and gives only addresses that may be asked. Each connection resolves again, and goes to an
/// address that was checked.
#[derive(Debug, Clone)]
pub(super) struct Resolver {
    pub(super) guard: Guard,
    pub(super) names: Names,
}

impl tower_service::Service<Name> for Resolver {
    type Response = vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = Resolved;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Resolved {
        let Resolver { guard, names } = self.clone();
        Box::pin(async move {
            let all = names.look_up(name.as_str()).await?;
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
    fn metadata_is_refused_always_and_private_addresses_unless_named() {
        let (open, closed) = (Guard { private: true }, Guard { private: false });
        for never in ["169.254.169.254", "fe80::1", "0.0.0.0", "64:ff9b::a9fe:a9fe"] {
            let ip = never.parse().unwrap();
            assert!(open.refuses(ip).is_some() && closed.refuses(ip).is_some(), "{never}");
        }
        for private in ["127.0.0.1", "10.1.2.3", "fd12::1", "::ffff:127.0.0.1", "2002:7f00:1::"] {
            let ip = private.parse().unwrap();
            assert!(open.refuses(ip).is_none() && closed.refuses(ip).is_some(), "{private}");
        }
        assert!(closed.refuses("140.82.121.33".parse().unwrap()).is_none());
        assert!(is_own("127.0.0.1".parse().unwrap()) && is_own("::ffff:127.0.0.1".parse().unwrap()));
    }

    /// A name is looked at after it is resolved, each time.
    #[tokio::test]
    async fn name_of_a_private_address_is_refused_where_it_is_resolved() {
        use tower_service::Service;
        let names = Names::new(1, std::time::Duration::from_secs(10));
        let resolver = |private| Resolver { guard: Guard { private }, names: names.clone() };
        let resolve = async |private| resolver(private).call("localhost".parse().unwrap()).await;
        let error = resolve(false).await.unwrap_err();
        assert!(error.to_string().contains("localhost is refused"), "{error}");
        assert!(resolve(true).await.unwrap().all(|address| address.ip().is_loopback()));
    }

    /// In a network namespace of its own, which has a public address.
    #[test]
    fn public_address_of_this_node_is_refused_unless_named() {
        let tried = std::thread::spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).ok()?;
            let ip = "93.184.216.34".parse().unwrap();
            assert!(Guard { private: false }.refuses(ip).is_none());
            let mut add = std::process::Command::new("ip");
            assert!(add.args(["addr", "add", "93.184.216.34/32", "dev", "lo"]).status().unwrap().success());
            let why = Guard { private: false }.refuses(ip).unwrap();
            assert!(why.contains("this node's own"), "{why}");
            assert!(Guard { private: true }.refuses(ip).is_none());
            Some(())
        });
        if tried.join().unwrap().is_none() {
            println!("SKIPPED: a network namespace needs CAP_SYS_ADMIN");
        }
    }

    #[test]
    fn place_is_a_host_and_its_port_if_one_is_named() {
        let place = |text: &str| Place::of(&text.parse().unwrap());
        for (named, url, is_here) in [
            ("10.0.0.5:5000", "http://10.0.0.5:5000/v2/", true),
            ("10.0.0.5:5000", "http://10.0.0.5:5001/v2/", false),
            ("10.0.0.5:443", "https://10.0.0.5/v2/", true),
            ("cdn.example", "https://CDN.example:8443/x", true),
            ("cdn.example", "https://a.cdn.example/x", false),
            ("cdn.example", "https://cdn.example.evil.example/x", false),
            ("[fd12::1]:5000", "http://[fd12::1]:5000/", true),
        ] {
            assert_eq!(place(named).has(&url.parse().unwrap()), is_here, "{named} {url}");
        }
    }
}
