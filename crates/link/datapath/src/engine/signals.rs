//! The link's queue and rate, as its own traffic tells them.

use std::time::Duration;

use nix::{
    errno::Errno,
    time::{ClockId, clock_gettime},
};
pub use weir_bpf::SignalCounts;

use super::{Attachments, EngineError, EngineKind, attachments::SignalHooks};

/// The programs that watch the uplink behind the scheduler.
pub struct LinkSignals {
    /// The link's number.
    number: u32,
    programs: weir_bpf::LinkSignals,
}

impl LinkSignals {
    /// The engines whose upload can follow the link. They split super-packets. At a low rate a super-packet takes
    /// a fifth of a second, and the follower would take it for a queue.
    ///
    /// # Errors
    /// [`EngineError::Lacking`].
    pub fn goes_with(engine: EngineKind) -> Result<(), EngineError> {
        match engine {
            EngineKind::Htb | EngineKind::Edt => Ok(()),
            _ => {
                let why = "its rate does not follow a changing capacity (use engine auto, htb or edt, or \
                           one rate as `capacity`)";
                Err(EngineError::Lacking { engine, why: why.to_owned() })
            }
        }
    }

    /// Loads the programs, and has them watch the uplink of this number.
    ///
    /// # Errors
    /// [`EngineError`]: the programs do not load, or cannot be attached.
    pub fn open(number: u32, attachments: &mut Attachments) -> Result<LinkSignals, EngineError> {
        let programs = weir_bpf::LinkSignals::load(number, Some(&attachments.local_maps()?))?;
        let hooks = SignalHooks { ingress: programs.ingress_program(), egress: programs.egress_program() };
        attachments.set_signals(number, Some(hooks))?;
        Ok(LinkSignals { number, programs })
    }

    /// Takes the programs away from the uplink.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn close(self, attachments: &mut Attachments) -> Result<(), EngineError> {
        attachments.set_signals(self.number, None)
    }

    /// Reads the counts, and the time of the monotonic clock at which they are read, in nanoseconds.
    ///
    /// # Errors
    /// The kernel's errno.
    pub fn read(&self) -> Result<(u64, SignalCounts), Errno> {
        let time = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
        let nanos = u64::try_from(Duration::from(time).as_nanos()).unwrap_or(u64::MAX);
        Ok((nanos, self.programs.read(nanos)?))
    }

    /// Has all flows measure the bases of their round trips again.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn forget_bases(&mut self) -> Result<(), EngineError> {
        Ok(self.programs.forget_bases()?)
    }

    /// Has all flows measure the bases of what arrives again.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn forget_arrival_bases(&mut self) -> Result<(), EngineError> {
        Ok(self.programs.forget_arrival_bases()?)
    }
}
