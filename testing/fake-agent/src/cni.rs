//! The attachments of the fake agent.

use std::collections::BTreeMap;

use weir_agent::control::CniRequest;
use weir_api::{CniAttached, CniAttachment, CniForgotten, CniKey, Error, ErrorCode};
use weir_units::BitRate;

use crate::class;

/// It keeps what it is told. The class of a pod is called as the pod, and its interface is caught unless the pod
/// is `uncaught`.
#[derive(Default)]
pub(crate) struct FakeCni(BTreeMap<CniKey, CniAttachment>);

impl FakeCni {
    pub(crate) fn answer(&mut self, ask: CniRequest) {
        match ask {
            CniRequest::Put(attachment, reply) => {
                let answer = attached(&attachment);
                if answer.is_ok() {
                    self.0.insert(attachment.key.clone(), attachment);
                }
                drop(reply.send(answer));
            }
            CniRequest::Check(attachment, reply) => {
                let is_known = self.0.get(&attachment.key) == Some(&attachment);
                let unknown =
                    || Error::new(ErrorCode::UnknownName, format!("weir knows no {}", attachment.key));
                drop(reply.send(if is_known { attached(&attachment) } else { Err(unknown()) }));
            }
            CniRequest::Remove(key, reply) => {
                let gone = self.0.remove(&key).map(|attachment| attachment.key);
                drop(reply.send(CniForgotten { attachments: gone.into_iter().collect() }));
            }
            CniRequest::Keep(keep, reply) => {
                let goes = |a: &CniAttachment| a.network == keep.network && !keep.valid.contains(&a.key);
                let gone: Vec<CniKey> = self.0.values().filter(|a| goes(a)).map(|a| a.key.clone()).collect();
                self.0.retain(|key, _| !gone.contains(key));
                drop(reply.send(CniForgotten { attachments: gone }));
            }
        }
    }
}

fn attached(attachment: &CniAttachment) -> Result<CniAttached, Error> {
    let name = attachment.pod.clone().unwrap_or_else(|| attachment.key.container.clone());
    if name == "refused" {
        return Err(Error::new(
            ErrorCode::BadRequest,
            "cannot attach it: its network namespace is the node's",
        ));
    }
    let mut class = class(&name, BitRate::mbit(5), BitRate::ZERO);
    "cni".clone_into(&mut class.source);
    if name == "uncaught" {
        class.enforced = false;
        class.not_enforced_because = Some("interface veth9 is not caught yet".to_owned());
    }
    // The test sees the wishes as remarks.
    let remarks = attachment.wishes.iter().map(|wish| format!("{wish}={}", wish.value)).collect();
    Ok(CniAttached { fault: class.not_enforced_because.clone(), class, remarks })
}
