//! Takes the shim out of the environment again.
//!
//! The variable would be inherited by every child, and an arm64 library inserted into one of Apple's arm64e
//! binaries (`/usr/bin/tee`, say) makes the dynamic linker end it. Other people's entries stay.

use crate::sys::{self, OwnedText};
use core::ffi::CStr;
use ferry_shim_contract::INSERT_VARIABLE;

const VARIABLE: &CStr = if cfg!(target_vendor = "apple") { c"DYLD_INSERT_LIBRARIES" } else { c"LD_PRELOAD" };

/// Linux separates preloaded libraries by colons or spaces, macOS by colons.
fn is_separator(byte: u8) -> bool {
    byte == b':' || (cfg!(not(target_vendor = "apple")) && byte == b' ')
}

/// Removes this library's entries from the variable that inserted it.
pub fn remove_self() {
    let (Some(list), Some(own)) = (sys::variable(INSERT_VARIABLE), sys::own_path()) else { return };
    let Some(kept) = without(list, |entry| is_own(entry, own)) else { return };
    sys::set_variable(VARIABLE, (!kept.as_c_str().is_empty()).then(|| kept.as_c_str()));
}

fn is_own(entry: &[u8], own: &CStr) -> bool {
    entry == own.to_bytes()
        || OwnedText::copy(entry).is_some_and(|entry| sys::is_same_file(entry.as_c_str(), own))
}

/// The entries that are not `unwanted`, joined by colons.
fn without(list: &[u8], unwanted: impl Fn(&[u8]) -> bool) -> Option<OwnedText> {
    let mut kept = OwnedText::empty(list.len())?;
    for entry in list.split(|byte| is_separator(*byte)).filter(|entry| !entry.is_empty() && !unwanted(entry))
    {
        kept.join(b':', entry);
    }
    Some(kept)
}
