//! The tasks that write to the API server: the node's status, and events of pods.

use std::{collections::BTreeMap, time::Duration};

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    sync::{
        mpsc::{self, UnboundedSender},
        watch::{Receiver, Sender},
    },
    time::timeout,
};
use weir_units::Utc;

use super::{
    Resources,
    client::{Client, Fault},
    endpoint::Endpoint,
    followed::pause,
    remarks::Remark,
    requests::{Ask, status_patch},
};

/// The resources of a node.
pub(super) const EGRESS: &str = "weir.dev/egress-mbit";
pub(super) const INGRESS: &str = "weir.dev/ingress-mbit";
/// The interval between two looks at the node's status. A node that is registered again has no such resource, and a
/// kubelet may set it to zero. No pod that asks for bandwidth is placed there meanwhile.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// A node's status as far as it is used.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Node {
    status: NodeStatus,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NodeStatus {
    capacity: BTreeMap<String, Value>,
    allocatable: BTreeMap<String, Value>,
}

impl Node {
    /// The resources that differ from what is wanted.
    fn differing(&self, wanted: Resources) -> Vec<(&'static str, Option<u64>)> {
        let has = |name: &str, value: u64| {
            let is = |map: &BTreeMap<String, Value>| {
                map.get(name).and_then(super::objects::quantity) == Some(value)
            };
            is(&self.status.capacity) && is(&self.status.allocatable)
        };
        let pairs = [(EGRESS, wanted.egress), (INGRESS, wanted.ingress)];
        pairs.into_iter().filter(|(name, value)| value.is_some_and(|value| !has(name, value))).collect()
    }
}

/// Keeps the wanted resources in the node's status. They stay when the agent ends: a kubelet would reject pods
/// that start without them.
pub(super) async fn keep_status(
    endpoint: Endpoint,
    mut wanted: Receiver<Resources>,
    faults: Sender<[Option<Fault>; 2]>,
) {
    let mut failures = 0;
    loop {
        let now = *wanted.borrow_and_update();
        let fault = write_status(&endpoint, now).await.err();
        failures = if fault.is_some() { failures + 1 } else { 0 };
        let wait = wait_after(fault.as_ref(), failures, fastrand::f64());
        faults.send_modify(|faults| faults[0] = fault);
        // The agent changes them at most once a second, so a failing server is asked no more often either.
        if let Ok(Err(_)) = timeout(wait, wanted.changed()).await {
            return;
        }
    }
}

/// The wait until the next look, after `failures` in a row. A node without an object may be registered again at any moment.
fn wait_after(fault: Option<&Fault>, failures: u32, random: f64) -> Duration {
    match fault {
        None => LOOK_AGAIN,
        Some(Fault::Refused { status: 404, .. }) => pause(failures, random).min(LOOK_AGAIN),
        Some(_) => pause(failures, random),
    }
}

async fn write_status(endpoint: &Endpoint, wanted: Resources) -> Result<(), Fault> {
    if wanted == Resources::default() {
        return Ok(());
    }
    let client = Client::open(endpoint)?;
    let node = endpoint.node.clone();
    let found: Node = client.ask(&Ask::GetNode { node: node.clone() }).await?;
    let differing = found.differing(wanted);
    if !differing.is_empty() {
        let _: Value = client.ask(&Ask::PatchNode { node, body: status_patch(&differing) }).await?;
        tracing::debug!("the node's status has {differing:?}");
    }
    Ok(())
}

/// An event of a pod as the API server takes it.
fn event(remark: &Remark, node: &str, now: Utc) -> Value {
    let Remark { namespace, name, uid, reason, text } = remark;
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": { "generateName": "weir-", "namespace": namespace },
        "involvedObject": { "apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name, "uid": uid },
        "type": "Warning",
        "reason": reason.to_string(),
        "message": text,
        "source": { "component": "weir", "host": node },
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    })
}

/// Writes events one after the other. Those that cannot be written are given back.
pub(super) async fn write_events(
    endpoint: Endpoint,
    mut waiting: mpsc::Receiver<Remark>,
    unwritten: UnboundedSender<Remark>,
    faults: Sender<[Option<Fault>; 2]>,
) {
    while let Some(remark) = waiting.recv().await {
        let fault = match write_event(&endpoint, &remark).await {
            Ok(()) => None,
            // A namespace that is being removed takes no event.
            Err(Fault::Refused { status: 404 | 409, .. }) => None,
            Err(why) => Some(why),
        };
        if let Some(why) = &fault {
            drop(unwritten.send(remark));
            // A server that does not answer has no answer for the others either.
            while !matches!(why, Fault::Refused { .. })
                && let Ok(remark) = waiting.try_recv()
            {
                drop(unwritten.send(remark));
            }
        }
        faults.send_modify(|faults| faults[1] = fault);
    }
}

async fn write_event(endpoint: &Endpoint, remark: &Remark) -> Result<(), Fault> {
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    let now = Utc::from_millis(i64::try_from(now.as_millis()).unwrap_or(i64::MAX));
    let body = event(remark, &endpoint.node, now);
    let ask = Ask::CreateEvent { namespace: remark.namespace.clone(), body };
    let _: Value = Client::open(endpoint)?.ask(&ask).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::Reason;

    #[test]
    fn a_status_is_written_where_it_differs_in_either_part() {
        let node = |capacity: Value, allocatable: Value| -> Node {
            serde_json::from_value(json!({ "status": { "capacity": capacity, "allocatable": allocatable } }))
                .unwrap()
        };
        let wanted = Resources { egress: Some(1_000), ingress: None };
        let both = json!({ EGRESS: "1k", INGRESS: "5" });
        assert_eq!(node(both.clone(), both.clone()).differing(wanted), []);
        let zero = json!({ EGRESS: "0" });
        assert_eq!(node(both.clone(), zero).differing(wanted), [(EGRESS, Some(1_000))]);
        assert_eq!(node(json!({ "cpu": "2" }), both).differing(wanted), [(EGRESS, Some(1_000))]);
        let wanted = Resources { egress: Some(1_000), ingress: Some(4) };
        assert_eq!(Node::default().differing(wanted).len(), 2);
    }

    #[test]
    fn node_that_was_deleted_is_looked_for_every_10_s_at_least() {
        let refused = |status| Fault::Refused { server: "api".into(), status, why: "no such node".into() };
        let wait = |fault: Option<&Fault>, failures| wait_after(fault, failures, 1.0).as_millis();
        assert_eq!(wait(Some(&refused(404)), 2), 400);
        assert_eq!(wait(Some(&refused(404)), 20), 10_000);
        assert_eq!(wait(Some(&refused(500)), 20), 30_000, "a server that fails is asked less often");
        assert_eq!(wait(None, 0), 10_000);
    }

    #[test]
    fn an_event_names_the_pod_and_the_node() {
        let remark = Remark {
            namespace: "shop".into(),
            name: "web".into(),
            uid: "u-1".into(),
            reason: Reason::NotEnforced,
            text: "min 9mbit is not promised".into(),
        };
        let event = event(&remark, "edge-1", Utc::from_millis(0));
        assert_eq!(event["involvedObject"]["uid"], "u-1");
        assert_eq!(
            (&event["reason"], &event["source"]["host"]),
            (&json!("WeirNotEnforced"), &json!("edge-1"))
        );
        assert_eq!(event["lastTimestamp"], "1970-01-01T00:00:00Z");
    }
}
