//! How a static program of glibc finds users, groups and hosts.
//!
//! glibc asks the modules that `/etc/nsswitch.conf` names, and loads them as shared libraries. In a static program
//! they may belong to another glibc. The modules `files` and `dns` are within glibc itself.

use std::ffi::{CStr, c_char, c_int};

unsafe extern "C" {
    fn __nss_configure_lookup(database: *const c_char, services: *const c_char) -> c_int;
}

const SERVICES: [(&CStr, &CStr); 3] = [(c"passwd", c"files"), (c"group", c"files"), (c"hosts", c"files dns")];

/// Makes this process look up names by the modules within glibc only.
pub(crate) fn use_own_modules() {
    for (database, services) in SERVICES {
        // SAFETY: both strings end with a zero byte and live as long as the program. No other thread runs yet.
        // glibc fails only for a database that it does not know, and it knows these.
        let _ = unsafe { __nss_configure_lookup(database.as_ptr(), services.as_ptr()) };
    }
}
