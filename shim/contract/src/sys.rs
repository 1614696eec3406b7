//! What the running kernel calls itself.
#![allow(unsafe_code)]

/// Longest build name kept; longer ones are cut, on both sides alike.
pub const BUILD_LENGTH_MAX: usize = 64;

/// The build of the running operating system: `25F84` on macOS (`kern.osversion`), the kernel release elsewhere.
/// Written into `buffer`; `None` if the kernel would not say.
#[must_use]
pub fn guest_build(buffer: &mut [u8; BUILD_LENGTH_MAX]) -> Option<&[u8]> {
    let length = read_build(buffer)?;
    Some(&buffer[..length])
}

#[cfg(target_vendor = "apple")]
fn read_build(buffer: &mut [u8; BUILD_LENGTH_MAX]) -> Option<usize> {
    let mut size = buffer.len();
    // SAFETY: the name is a C string, the buffer has `size` writable bytes, and nothing is set.
    let failed = unsafe {
        libc::sysctlbyname(
            c"kern.osversion".as_ptr(),
            buffer.as_mut_ptr().cast(),
            &raw mut size,
            core::ptr::null_mut(),
            0,
        )
    };
    (failed == 0).then(|| terminated_length(buffer))
}

#[cfg(not(target_vendor = "apple"))]
fn read_build(buffer: &mut [u8; BUILD_LENGTH_MAX]) -> Option<usize> {
    // SAFETY: utsname is made of character arrays, for which zero is a value.
    let mut names: libc::utsname = unsafe { core::mem::zeroed() };
    // SAFETY: the pointer is to a utsname of our own.
    if unsafe { libc::uname(&raw mut names) } != 0 {
        return None;
    }
    for (to, from) in buffer.iter_mut().zip(names.release) {
        *to = from.to_ne_bytes()[0];
    }
    Some(terminated_length(buffer))
}

fn terminated_length(bytes: &[u8]) -> usize {
    bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn the_kernel_says_what_it_is() {
        let mut buffer = [0; BUILD_LENGTH_MAX];
        let said = guest_build(&mut buffer).expect("uname works");
        let proc = std::fs::read("/proc/sys/kernel/osrelease").expect("Linux has it");
        assert!(proc.trim_ascii_end().starts_with(said) && !said.is_empty());
    }
}
