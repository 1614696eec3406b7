//! Objective-C type encodings of the methods that the shim overrides.
//!
//! A method of another shape under the same name would be called with the wrong registers. So the shapes are
//! compared before anything is changed. Apple's and GCC's runtimes write the same language with small
//! differences (frame offsets, `L` or `Q` for `unsigned long`).

/// How `BOOL` is written: C's `bool` on arm64 macOS, a character elsewhere.
const BOOL: &[u8] = if cfg!(all(target_vendor = "apple", target_arch = "aarch64")) { b"B" } else { b"BcC" };
/// `NSInteger` and `NSUInteger`: 64 bits, signed or not, called alike.
const INTEGER: &[u8] = b"qQlL";
const OBJECT: &[u8] = b"@";
const SELECTOR: &[u8] = b":";
const VOID: &[u8] = b"v";
const QUALIFIERS: &[u8] = b"rnNoORV";

/// Is this `- (BOOL)supportsFamily:(MTLGPUFamily)family`?
#[must_use]
pub fn is_supports_family(encoding: &[u8]) -> bool {
    has_shape(encoding, &[BOOL, OBJECT, SELECTOR, INTEGER])
}

/// Is this `- (NSUInteger)maxThreadgroupMemoryLength`?
#[must_use]
pub fn is_length(encoding: &[u8]) -> bool {
    has_shape(encoding, &[INTEGER, OBJECT, SELECTOR])
}

/// Is this a method without argument or result, like `- (void)initGPUFamilySupport`?
#[must_use]
pub fn is_plain(encoding: &[u8]) -> bool {
    has_shape(encoding, &[VOID, OBJECT, SELECTOR])
}

fn has_shape(encoding: &[u8], shape: &[&[u8]]) -> bool {
    let mut kinds = encoding.iter().filter(|c| !c.is_ascii_digit() && !QUALIFIERS.contains(c));
    shape.iter().all(|allowed| kinds.next().is_some_and(|kind| allowed.contains(kind)))
        && kinds.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_runtimes_spellings_are_known() {
        assert!(is_supports_family(b"B24@0:8q16"));
        assert!(is_supports_family(b"C24@0:8Q16") || cfg!(target_vendor = "apple"));
        assert!(is_length(b"Q16@0:8") && is_length(b"L16@0:8"));
        assert!(is_plain(b"v16@0:8"));
    }

    #[test]
    fn other_shapes_are_refused() {
        for bad in [&b""[..], b"B", b"B24@0:8", b"B24@0:8i16", b"q24@0:8q16", b"B32@0:8q16q24", b"B24@0:8@16"]
        {
            assert!(!is_supports_family(bad), "{}", bad.escape_ascii());
        }
        for bad in [&b"I16@0:8"[..], b"d16@0:8", b"Q24@0:8q16", b"{S=QQ}16@0:8"] {
            assert!(!is_length(bad), "{}", bad.escape_ascii());
        }
        assert!(!is_plain(b"@16@0:8"));
    }
}
