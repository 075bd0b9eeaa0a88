//! The networks that packets reach without the line: on this node, or beside an uplink's device.

use std::{ops::BitOr, os::fd::AsFd};

use libbpf_rs::{Error as BpfError, MapCore, MapHandle, OpenObject};

use super::skeleton::ClassifyMaps;
use crate::Error;

/// A value of `weir_local` (local.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Locality(u32);

impl Locality {
    /// On this node, or behind an interface that is no uplink. Packets that leave by an uplink all the same are
    /// charged there.
    pub const ON_NODE: Locality = Locality(1);

    /// Beside the device of the link of this number. Packets by this device do not cross the line, and pass.
    #[must_use]
    pub fn exempt(link: u32) -> Locality {
        Locality(0x100 << link)
    }

    pub(super) fn bytes(self) -> [u8; 4] {
        self.0.to_ne_bytes()
    }

    /// Whether packets pass the uplink of the link of this number.
    #[must_use]
    pub fn is_exempt(self, link: u32) -> bool {
        self.0 & Locality::exempt(link).0 != 0
    }
}

impl BitOr for Locality {
    type Output = Locality;
    fn bitor(self, other: Locality) -> Locality {
        Locality(self.0 | other.0)
    }
}

/// The maps of the classifier's programs with these networks.
pub struct LocalMaps([MapHandle; 2]);

impl LocalMaps {
    pub(super) fn of(maps: &ClassifyMaps<'_>) -> Result<LocalMaps, Error> {
        let handle = |map: &libbpf_rs::MapMut<'_>| {
            MapHandle::try_from(map).map_err(|source| Error { what: "share the maps of networks", source })
        };
        Ok(LocalMaps([handle(&maps.weir_local)?, handle(&maps.weir_exempt)?]))
    }

    /// Has an object use these maps in place of its own.
    pub(crate) fn share(&self, object: &mut OpenObject) -> Result<(), BpfError> {
        for shared in &self.0 {
            let same = |map: &libbpf_rs::OpenMapMut<'_>| map.name() == shared.name();
            let mut map = object.maps_mut().find(same).expect("the object includes local.h");
            map.reuse_fd(shared.as_fd())?;
        }
        Ok(())
    }
}
