//! The kernel's numbers for errors, as a program sees them.

use fuser::Errno;
use weir_api::{ClientError, ErrorCode};

/// The number for an error of the agent's.
pub(crate) fn of(error: &ClientError) -> Errno {
    match error {
        ClientError::Unreachable { .. } | ClientError::NoConnection { .. } => Errno::ECONNREFUSED,
        ClientError::Permission { .. } | ClientError::NoTls { .. } => Errno::EACCES,
        ClientError::Timeout { .. } => Errno::ETIMEDOUT,
        ClientError::Refused(refused) => match &refused.code {
            ErrorCode::UnknownName | ErrorCode::AmbiguousName => Errno::ENOENT,
            ErrorCode::BadRequest => Errno::EINVAL,
            ErrorCode::Forbidden => Errno::EACCES,
            // As sched_setattr(2) says that a reservation does not fit.
            ErrorCode::NoCapacity => Errno::EBUSY,
            ErrorCode::Busy | ErrorCode::Stopping => Errno::EAGAIN,
            _ => Errno::EIO,
        },
        ClientError::Fault(_) | ClientError::Protocol { .. } => Errno::EIO,
    }
}

#[cfg(test)]
mod tests {
    use weir_api::{Client, Error};

    use super::*;

    #[test]
    fn each_refusal_has_its_number() {
        let refused = |code: ErrorCode| of(&ClientError::Refused(Error::new(code, "no")));
        for (code, number) in [
            (ErrorCode::UnknownName, Errno::ENOENT),
            (ErrorCode::BadRequest, Errno::EINVAL),
            (ErrorCode::Forbidden, Errno::EACCES),
            (ErrorCode::NoCapacity, Errno::EBUSY),
            (ErrorCode::Stopping, Errno::EAGAIN),
            (ErrorCode::Engine, Errno::EIO),
            (ErrorCode::Other("new".to_owned()), Errno::EIO),
        ] {
            assert_eq!(refused(code.clone()), number, "{code}");
        }
    }

    #[test]
    fn agent_that_is_not_there_refuses_the_connection() {
        let error = Client::new("/nowhere/weir.sock").status().unwrap_err();
        assert_eq!(of(&error), Errno::ECONNREFUSED);
    }
}
