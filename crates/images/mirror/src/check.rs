//! Whether the values of the section `[images]` fit together.

use std::{collections::BTreeSet, net::SocketAddr};

use weir_units::{BitRate, chain, without_user};

use crate::{PopStore, RuntimeSettings, Settings, coordination::Redis, pins, upstream::Base};

/// The least that downloads may be bounded to: clients give up on what makes no progress.
const MIN_RATE: BitRate = BitRate::mbit(1);

/// Whether this is `http://[user:password@]host[:port]`. Another character in the password would end the host.
fn is_proxy(text: &str) -> bool {
    let Ok(url) = text.parse::<hyper::Uri>() else { return false };
    let (Some(host), Some(authority)) = (url.host(), url.authority()) else { return false };
    let place = authority.as_str().split_once('@').map_or(authority.as_str(), |(_, place)| place);
    let port = place.strip_prefix(host).map(|port| port.strip_prefix(':').unwrap_or(port));
    url.scheme_str() == Some("http")
        && port.is_some_and(|port| port.is_empty() || port.parse::<u16>().is_ok())
        && matches!(url.path(), "" | "/")
        && !text.contains(['?', '#'])
}

impl Settings {
    /// Checks rules that the types do not hold.
    ///
    /// # Errors
    /// The key, and its fault.
    pub fn check(&self) -> Result<(), (String, String)> {
        let fault = |key: &str, detail: String| Err((format!("[images] {key}"), detail));
        if !self.listen.ip().is_loopback() {
            let detail = format!("{} is not a loopback address: what is served has no TLS", self.listen.ip());
            return fault("listen", detail);
        }
        if !self.directory.is_absolute() {
            return fault("directory", format!("{} is not an absolute path", self.directory.display()));
        }
        if self.budget.0 < 64 << 20 {
            return fault("budget", format!("{} is less than 64MiB", self.budget));
        }
        if !(1..=65_536).contains(&self.connections) {
            return fault("connections", format!("{} is not between 1 and 65536", self.connections));
        }
        if !(1..=365).contains(&self.scrub_days) {
            let detail =
                format!("{} is not between 1 and 365; scrub_rate = \"0\" turns it off", self.scrub_days);
            return fault("scrub_days", detail);
        }
        if let Some(rate) = self.max_rate
            && rate < MIN_RATE
        {
            return fault(
                "max_rate",
                format!("{rate} is less than {MIN_RATE}: pulls would seem to stand still"),
            );
        }
        match (&self.proxy, &self.no_proxy) {
            (None, Some(_)) => return fault("no_proxy", "it is about proxy, and there is none".to_owned()),
            (Some(proxy), _) if !proxy.is_empty() && !is_proxy(proxy) => {
                let shown = without_user(proxy, "(hidden)");
                let how = "write it as http://proxy.example:3128, or http://user:password@proxy.example:3128 with %2F \
                           for `/`, %40 for `@`, %23 for `#` and %3F for `?` in the password";
                return fault("proxy", format!("cannot read `{shown}`: {how}"));
            }
            _ => {}
        }
        if let Some(pop) = &self.pop {
            let fault = |key: &str, detail: String| Err((format!("[images.pop] {key}"), detail));
            let is_good = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
            if pop.name.is_empty() || !pop.name.chars().all(is_good) {
                return fault("name", format!("`{}` is not letters, digits, `-`, `_` and `.`", pop.name));
            }
            let node = match pop.node() {
                Ok(node) => node,
                Err(why) => return fault("node", why),
            };
            match (pop.store, pop.listen, &pop.secret_file) {
                (PopStore::SharedDir, None, None) if pop.networks.is_empty() => {}
                (PopStore::SharedDir, ..) => {
                    return fault(
                        "store",
                        "shared-dir needs neither listen nor secret_file nor networks".to_owned(),
                    );
                }
                (PopStore::Peer, Some(listen), Some(_))
                    if !listen.ip().is_unspecified() && listen.port() != 0 => {}
                (PopStore::Peer, ..) => {
                    let how = "peer needs listen, this node's address among them (\"10.0.0.5:5051\"), and secret_file";
                    return fault("store", how.to_owned());
                }
            }
            let is_in = |listen: SocketAddr| pop.networks.iter().any(|network| network.has(listen.ip()));
            if let Some(listen) = pop.listen
                && !pop.networks.is_empty()
                && !is_in(listen)
            {
                return fault("networks", format!("{} of listen is in none of them", listen.ip()));
            }
            if let Err(e) = Redis::new(&pop.redis, None, &pop.name, &node) {
                return fault("redis", chain(&e));
            }
        }
        if let Some(runtime) = &self.runtime {
            runtime.check()?;
        }
        let mut seen = BTreeSet::new();
        for upstream in &self.upstreams {
            let fault = |detail: String| Err((format!("[[images.upstream]] {}", upstream.registry), detail));
            if !seen.insert(&upstream.registry) {
                return fault("this registry is there twice".to_owned());
            }
            if upstream.username.is_some() != upstream.password_file.is_some() {
                return fault("username and password_file go together".to_owned());
            }
            if upstream.cert_file.is_some() != upstream.key_file.is_some() {
                return fault("cert_file and key_file go together".to_owned());
            }
            if upstream.username.is_some() && upstream.docker_config.is_some() {
                return fault("username and docker_config are two ways to log in: name one".to_owned());
            }
            let logs_in = upstream.username.is_some() || upstream.docker_config.is_some();
            if logs_in && upstream.share.is_empty() {
                return fault(
                    "say which repositories everybody on this node may have with these credentials: \
                     share = [\"acme/*\"], or [\"*\"] for all"
                        .to_owned(),
                );
            }
            if !logs_in && !upstream.share.is_empty() {
                return fault("share is about credentials, and there are none".to_owned());
            }
            if upstream.requests == 0 {
                return fault("requests: 0 would never ask it".to_owned());
            }
            if let Err(e) = Base::of(upstream) {
                return fault(e);
            }
        }
        Ok(())
    }
}

impl RuntimeSettings {
    fn check(&self) -> Result<(), (String, String)> {
        let fault = |key: &str, detail: String| Err((format!("[images.runtime] {key}"), detail));
        if self.budget.0 < 64 << 20 {
            return fault("budget", format!("{} is less than 64MiB", self.budget));
        }
        if let Some(bad) = self.pins.iter().find(|pin| !pins::is_pattern(pin)) {
            let how = "write an image in full, such as ghcr.io/acme/*:prod (* stands for anything)";
            return fault("pins", format!("cannot read `{bad}` as an image: {how}"));
        }
        if let Some(docker) = self.docker.as_ref().filter(|docker| !docker.is_absolute()) {
            return fault("docker", format!("{} is not an absolute path", docker.display()));
        }
        Ok(())
    }
}
