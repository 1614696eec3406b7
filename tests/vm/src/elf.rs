//! The shared libraries that programs need: what `ldd` says, without running anything.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use object::elf::{DT_NEEDED, DT_RPATH, DT_RUNPATH, ELFMAG, FileHeader64};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::{Endianness, elf::PT_INTERP};

/// Where the loaders of the common distributions look.
const SYSTEM_DIRS: [&str; 6] =
    ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"];

/// What an ELF file asks its loader for.
#[derive(Debug, Default)]
struct Needs {
    /// The loader itself, of a program.
    interpreter: Option<PathBuf>,
    libraries: Vec<String>,
    run_paths: Vec<String>,
}

/// All shared libraries and loaders that `files` need, directly or not, under the paths where the loader
/// finds them.
///
/// # Errors
/// If a file cannot be read, is not a 64-bit ELF file, or needs a library that is nowhere.
pub fn closure(files: &[PathBuf]) -> Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    let mut pending: Vec<PathBuf> = files.to_vec();
    while let Some(file) = pending.pop() {
        let needs = read(&file).with_context(|| format!("cannot read {} as an ELF file", file.display()))?;
        for name in &needs.libraries {
            let path = locate(name, &file, &needs.run_paths)
                .with_context(|| format!("{} needs the library {name}, which is nowhere", file.display()))?;
            if found.insert(path.clone()) {
                pending.push(path);
            }
        }
        found.extend(needs.interpreter);
    }
    Ok(found)
}

/// The programs and libraries that lie in `folder`.
///
/// # Errors
/// If it cannot be read.
pub fn files_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        // Links lead to files beside them or to nothing of ours.
        if path.is_file() && !path.is_symlink() && is_elf(&path)? {
            files.push(path);
        }
    }
    Ok(files)
}

fn is_elf(path: &Path) -> Result<bool> {
    let mut magic = Vec::new();
    File::open(path)?.take(ELFMAG.len() as u64).read_to_end(&mut magic)?;
    Ok(magic == ELFMAG)
}

/// Finds a library as the loader would for `user`.
fn locate(name: &str, user: &Path, run_paths: &[String]) -> Option<PathBuf> {
    let origin = user.parent().unwrap_or(Path::new("/")).to_string_lossy();
    let run_dirs = run_paths.iter().flat_map(|paths| paths.split(':')).filter(|path| !path.is_empty());
    let run_dirs = run_dirs.map(|dir| dir.replace("$ORIGIN", &origin).replace("${ORIGIN}", &origin));
    // A library of a library usually lies beside it, found by the run path of the program.
    let beside = std::iter::once(origin.to_string());
    let dirs = run_dirs.chain(SYSTEM_DIRS.map(str::to_owned)).chain(beside);
    dirs.map(|dir| Path::new(&dir).join(name)).find(|path| path.exists())
}

fn read(path: &Path) -> Result<Needs> {
    let data = fs::read(path)?;
    let header = FileHeader64::<Endianness>::parse(&*data)?;
    let endian = header.endian()?;
    let mut needs = Needs::default();
    for segment in header.program_headers(endian, &*data)? {
        if segment.p_type(endian) == PT_INTERP {
            let Ok(bytes) = segment.data(endian, &*data) else {
                bail!("its interpreter lies outside the file")
            };
            let name = std::str::from_utf8(bytes)?.trim_end_matches('\0');
            needs.interpreter = Some(PathBuf::from(name));
        }
    }
    let sections = header.sections(endian, &*data)?;
    if let Some((entries, strings)) = sections.dynamic(endian, &*data)? {
        let strings = sections.strings(endian, &*data, strings)?;
        for entry in entries {
            let text = || anyhow::Ok(std::str::from_utf8(entry.string(endian, strings)?)?.to_owned());
            match u32::try_from(entry.d_tag(endian)).unwrap_or(u32::MAX) {
                DT_NEEDED => needs.libraries.push(text()?),
                DT_RUNPATH | DT_RPATH => needs.run_paths.push(text()?),
                _ => {}
            }
        }
    }
    Ok(needs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_needs_libc_and_a_loader() {
        let found = closure(&[std::env::current_exe().unwrap()]).unwrap();
        let has = |start: &str| {
            found.iter().any(|path| path.file_name().unwrap().to_string_lossy().starts_with(start))
        };
        assert!(has("libc.so.6"), "{found:?}");
        assert!(has("ld-linux"), "{found:?}");
    }

    #[test]
    fn what_is_no_program_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = closure(&[file.path().to_owned()]).unwrap_err();
        assert!(format!("{error:#}").contains("as an ELF file"), "{error:#}");
    }
}
