//! The result of the plugins before this one, in the version of the request.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Map, Value};

use super::{Failure, VERSIONS, config::Config};

/// The result that ADD prints. Weir adds no interface, so it is the one before in the request's version.
pub(super) fn of(config: &Config) -> Result<Value, Failure> {
    let previous = config.previous()?;
    let from = previous.get("cniVersion").and_then(Value::as_str).unwrap_or(&config.version);
    let mut result = previous.clone();
    if from != config.version {
        convert(&mut result, &config.version);
    }
    result.insert("cniVersion".to_owned(), config.version.clone().into());
    Ok(Value::Object(result))
}

/// Removes what the version `to` does not know, and adds what it needs.
fn convert(result: &mut Map<String, Value>, to: &str) {
    let place = |version: &str| VERSIONS.iter().position(|known| *known == version);
    for ip in objects(result, "ips") {
        // 1.0.0 took the version of IP out of the result.
        if place(to) < place("1.0.0") {
            if let Some(version) = ip.get("address").and_then(Value::as_str).and_then(version) {
                ip.insert("version".to_owned(), version.into());
            }
        } else {
            ip.remove("version");
        }
    }
    if place(to) < place("1.1.0") {
        for interface in objects(result, "interfaces") {
            interface.retain(|key, _| ["name", "mac", "sandbox"].contains(&key.as_str()));
        }
        for route in objects(result, "routes") {
            route.retain(|key, _| ["dst", "gw"].contains(&key.as_str()));
        }
    }
}

fn objects<'a>(
    result: &'a mut Map<String, Value>,
    key: &str,
) -> impl Iterator<Item = &'a mut Map<String, Value>> {
    let listed = result.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten();
    listed.filter_map(Value::as_object_mut)
}

fn version(address: &str) -> Option<&'static str> {
    let address =
        address.parse::<IpNet>().map(|net| net.addr()).or_else(|_| address.parse::<IpAddr>()).ok()?;
    Some(if address.is_ipv4() { "4" } else { "6" })
}
