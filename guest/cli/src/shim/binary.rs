//! Whether a library is the shim, and whether a program would take it.

use super::Unusable;
use anyhow::{Context, Result, anyhow};
use object::macho::{self, CPU_SUBTYPE_ARM64E, CPU_TYPE_ARM64, MachHeader64};
use object::read::macho::{FatArch, LoadCommandIterator, LoadCommandVariant, MachHeader, MachOFatFile32};
use object::{Endianness, FileKind, Object};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Largest file that is looked into, in bytes: programs with embedded web pages and libraries stay far below.
const FILE_LENGTH_MAX: u64 = 1 << 30;
/// Exported by every build of the shim.
const SHIM_SYMBOL: &str = "FERRY_METAL_SHIM_VERSION";
/// Folders whose programs macOS protects from inserted libraries.
const PROTECTED: [&str; 6] = ["/bin/", "/sbin/", "/usr/bin/", "/usr/sbin/", "/usr/libexec/", "/System/"];
const ALLOW_VARIABLES: &str = "com.apple.security.cs.allow-dyld-environment-variables";
const ALLOW_LIBRARIES: &str = "com.apple.security.cs.disable-library-validation";
/// `CS_RUNTIME` of a code directory's flags.
const HARDENED_RUNTIME: u32 = 0x1_0000;
const SIGNATURE_MAGIC: u32 = 0xfade_0cc0;
const CODE_DIRECTORY_MAGIC: u32 = 0xfade_0c02;
const ENTITLEMENTS_MAGIC: u32 = 0xfade_7171;
/// Most blobs of a signature that are looked at; a real one has about six.
const BLOBS_MAX: u32 = 64;

/// Fails unless the library is the shim, for this machine.
pub fn ensure_shim(path: &Path) -> Result<()> {
    let bytes = read(path)?;
    let unusable = |why: &str| anyhow!(Unusable(format!("{}: {why}", path.display())));
    let file =
        object::File::parse(&*bytes).map_err(|_| unusable("this is no library of one architecture"))?;
    if file.format() != object::BinaryFormat::native_object() || file.architecture() != native() {
        return Err(unusable(&format!(
            "built for {:?} {:?}, not for this machine",
            file.format(),
            file.architecture()
        )));
    }
    let exports = file.exports().map_err(|error| unusable(&error.to_string()))?;
    let is_mark = |name: &[u8]| {
        name == SHIM_SYMBOL.as_bytes() || name.strip_prefix(b"_") == Some(SHIM_SYMBOL.as_bytes())
    };
    if exports.iter().any(|export| is_mark(export.name())) {
        Ok(())
    } else {
        Err(unusable("this is no Ferry shim"))
    }
}

/// Fails if the program is known to ignore inserted libraries, or to be ended by them.
pub fn ensure_insertable(path: &Path) -> Result<()> {
    let unusable = |why: String| anyhow!(Unusable(format!("{}: {why}", path.display())));
    let metadata = std::fs::metadata(path).with_context(|| format!("looking at {}", path.display()))?;
    if metadata.mode() & 0o6000 != 0 {
        return Err(unusable("a setuid or setgid program ignores inserted libraries".into()));
    }
    let bytes = read(path)?;
    if let Some(line) = bytes.strip_prefix(b"#!") {
        let interpreter =
            String::from_utf8_lossy(line.split(|byte| *byte == b'\n').next().unwrap_or_default())
                .into_owned();
        let hint = "name the program that uses Metal instead";
        return Err(unusable(format!(
            "a script for {}: its interpreter would get the shim; {hint}",
            interpreter.trim()
        )));
    }
    let is_macho = matches!(FileKind::parse(&*bytes), Ok(FileKind::MachO64 | FileKind::MachOFat32));
    let protected = is_macho
        && std::fs::canonicalize(path)
            .is_ok_and(|path| PROTECTED.iter().any(|folder| path.starts_with(folder)));
    if protected {
        return Err(unusable("macOS protects this program from inserted libraries".into()));
    }
    match FileKind::parse(&*bytes) {
        Ok(FileKind::MachO64) => inspect(&bytes).map_err(unusable),
        Ok(FileKind::MachOFat32) => inspect(arm64_slice(&bytes).map_err(unusable)?).map_err(unusable),
        Ok(FileKind::Elf64) if cfg!(target_os = "linux") => Ok(()),
        _ => Err(unusable("this is no 64-bit program".into())),
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let length = std::fs::metadata(path).with_context(|| format!("looking at {}", path.display()))?.len();
    if length > FILE_LENGTH_MAX {
        return Err(anyhow!(Unusable(format!(
            "{}: {length} bytes are more than a program has",
            path.display()
        ))));
    }
    std::fs::read(path).with_context(|| format!("reading {}", path.display()))
}

fn native() -> object::Architecture {
    if cfg!(target_arch = "aarch64") { object::Architecture::Aarch64 } else { object::Architecture::X86_64 }
}

fn arm64_slice(bytes: &[u8]) -> Result<&[u8], String> {
    let fat = MachOFatFile32::parse(bytes).map_err(|error| error.to_string())?;
    let plain = |arch: &&macho::FatArch32| arch.cputype() == CPU_TYPE_ARM64 && !is_arm64e(arch.cpusubtype());
    let arch = fat.arches().iter().find(plain).ok_or("it has no arm64 part: the shim is arm64 only")?;
    arch.data(bytes).map_err(|error| error.to_string())
}

fn is_arm64e(subtype: u32) -> bool {
    subtype & !macho::CPU_SUBTYPE_MASK == CPU_SUBTYPE_ARM64E
}

/// Looks into one Mach-O program.
fn inspect(bytes: &[u8]) -> Result<(), String> {
    let malformed = |error: object::read::Error| format!("malformed: {error}");
    let header = MachHeader64::<Endianness>::parse(bytes, 0).map_err(malformed)?;
    let endian = header.endian().map_err(malformed)?;
    if header.cputype(endian) != CPU_TYPE_ARM64 {
        return Err("it is not an arm64 program: the shim is arm64 only".into());
    }
    if is_arm64e(header.cpusubtype(endian)) {
        return Err("an arm64e program is ended by an inserted arm64 library".into());
    }
    let mut commands: LoadCommandIterator<'_, Endianness> =
        header.load_commands(endian, bytes, 0).map_err(malformed)?;
    while let Some(command) = commands.next().map_err(malformed)? {
        match command.variant().map_err(malformed)? {
            LoadCommandVariant::Segment64(segment, _) if segment.segname.starts_with(b"__RESTRICT\0") => {
                return Err("its __RESTRICT segment makes it ignore inserted libraries".into());
            }
            LoadCommandVariant::LinkeditData(data) if command.cmd() == macho::LC_CODE_SIGNATURE => {
                let (start, length) = (data.dataoff.get(endian) as usize, data.datasize.get(endian) as usize);
                let signature = start.checked_add(length).and_then(|end| bytes.get(start..end));
                inspect_signature(signature.ok_or("malformed: its signature lies outside the file")?)?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn inspect_signature(signature: &[u8]) -> Result<(), String> {
    let malformed = || "malformed: its signature".to_owned();
    let number = |blob: &[u8], at: usize| -> Result<u32, String> {
        let bytes = at.checked_add(4).and_then(|end| blob.get(at..end)).ok_or_else(malformed)?;
        Ok(u32::from_be_bytes(bytes.try_into().map_err(|_| malformed())?))
    };
    if number(signature, 0)? != SIGNATURE_MAGIC {
        return Err(malformed());
    }
    let (mut is_hardened, mut entitlements) = (false, None);
    for index in 0..number(signature, 8)?.min(BLOBS_MAX) as usize {
        let start = number(signature, 12 + 8 * index + 4)? as usize;
        let blob = signature.get(start..).ok_or_else(malformed)?;
        let blob = blob.get(..number(blob, 4)? as usize).ok_or_else(malformed)?;
        match number(blob, 0)? {
            CODE_DIRECTORY_MAGIC => is_hardened |= number(blob, 12)? & HARDENED_RUNTIME != 0,
            ENTITLEMENTS_MAGIC => {
                entitlements = blob.get(8..).and_then(|xml| plist::from_bytes::<plist::Dictionary>(xml).ok())
            }
            _ => {}
        }
    }
    let is_allowed = |key| {
        entitlements.as_ref().and_then(|list| list.get(key)).and_then(plist::Value::as_boolean) == Some(true)
    };
    match is_hardened {
        true if !is_allowed(ALLOW_VARIABLES) => Err(hardened("ignores inserted libraries", ALLOW_VARIABLES)),
        true if !is_allowed(ALLOW_LIBRARIES) => {
            Err(hardened("takes only libraries of its own signer", ALLOW_LIBRARIES))
        }
        _ => Ok(()),
    }
}

fn hardened(what: &str, entitlement: &str) -> String {
    format!(
        "its hardened runtime {what}; use a build without it, or sign it again with the entitlement {entitlement}"
    )
}
