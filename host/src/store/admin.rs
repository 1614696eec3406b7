//! `ferryd store`: what an administrator does with a model store.

use super::gguf::{self, Tensors};
use super::index::{Index, PIECES_MAX, Piece};
use super::{INDEX_SUFFIX, MODELS_MAX, index_path, open_regular};
use anyhow::{Context, bail};
use ferry_protocol::limits::{STORE_PIECE_BYTES, STORE_TENSOR_BYTES_MIN};
use ferry_protocol::store::PieceHash;
use nix::fcntl::{Flock, FlockArg};
use std::fs::{File, Permissions};
use std::io::{BufReader, Seek, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use tempfile::NamedTempFile;

/// What is not whole yet is called this and more. It ends with none of the suffixes that mean something.
const UNFINISHED_PREFIX: &str = ".unfinished-";
/// Daemons of other users read a store, if its directory lets them in.
const MODE: u32 = 0o644;

/// A model in the store, for people.
#[derive(Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Its pieces.
    pub pieces: usize,
    /// Bytes of them.
    pub bytes: u64,
}

impl std::fmt::Display for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mib = self.bytes as f64 / f64::from(1 << 20);
        write!(f, "{}: {mib:.1} MiB of weights in {} pieces", self.name, self.pieces)
    }
}

fn entry(name: &str, index: &Index) -> Entry {
    let bytes = index.pieces().iter().map(|piece| u64::from(piece.bytes)).sum();
    Entry { name: name.to_owned(), pieces: index.pieces().len(), bytes }
}

/// The names of the models in `dir`, in their order.
pub fn names(dir: &Path) -> anyhow::Result<Vec<String>> {
    super::names(dir).with_context(|| format!("cannot look into the model store {}", dir.display()))
}

/// The models in `dir`, or why one cannot be used.
pub fn list(dir: &Path) -> anyhow::Result<Vec<anyhow::Result<Entry>>> {
    let list = names(dir)?;
    let list = list.iter().map(|name| {
        let index = Index::read(&index_path(dir, name));
        index.map(|index| entry(name, &index)).with_context(|| format!("the index of {name}"))
    });
    Ok(list.collect())
}

/// Puts a model's file into `dir`.
pub fn add(dir: &Path, file: &Path) -> anyhow::Result<Entry> {
    let _lock = lock(dir)?;
    sweep(dir)?;
    let name = name_of(file)?;
    if index_path(dir, name).exists() {
        bail!("{name} is in the store already (ferryd store remove takes it out)");
    }
    let context = || format!("cannot add {}", file.display());
    let mut source = open_regular(file).with_context(context)?;
    // What is no model is found out before it is copied.
    tensors_of(&source).with_context(context)?;
    let mut copy = unfinished(dir)?;
    source.rewind()?;
    // In the kernel, and without copying where the file system can share blocks.
    std::io::copy(&mut source, copy.as_file_mut()).context("cannot copy it")?;
    // The copy is what will be read, so the copy is what is looked at.
    let tensors = tensors_of(copy.as_file()).with_context(context)?;
    let unknown = tensors.unknown;
    let index = Index::new(pieces_of(copy.as_file(), tensors)?);
    if index.pieces().is_empty() {
        bail!(
            "{} has no tensor of {} KiB that this build knows",
            file.display(),
            STORE_TENSOR_BYTES_MIN >> 10
        );
    }
    if unknown > 0 {
        tracing::warn!(
            "{name}: {unknown} tensors are of types that this build does not know, and are left out"
        );
    }
    check_room(dir, index.pieces().len())?;
    finish(copy, &dir.join(name))?;
    let mut written = unfinished(dir)?;
    written.write_all(&index.encode())?;
    finish(written, &index_path(dir, name))?;
    File::open(dir)?.sync_all().context("cannot write the directory to disk")?;
    Ok(entry(name, &index))
}

/// Takes a model out. Sessions that use it go on, and may go on using it.
pub fn remove(dir: &Path, name: &str) -> anyhow::Result<()> {
    let _lock = lock(dir)?;
    if !names(dir)?.iter().any(|known| known == name) {
        bail!("there is no {name:?} in {}", dir.display());
    }
    std::fs::remove_file(index_path(dir, name)).context("cannot remove its index")?;
    match std::fs::remove_file(dir.join(name)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).context("cannot remove its data")
        }
        _ => Ok(()),
    }
}

/// Reads a model whole; the pieces that are not what they were.
pub fn damaged_pieces(dir: &Path, name: &str) -> anyhow::Result<usize> {
    let index = Index::read(&index_path(dir, name)).context("its index")?;
    let file = open_regular(&dir.join(name)).context("its data")?;
    let mut bytes = Vec::new();
    let is_damaged = |piece: &&Piece| {
        bytes.resize(piece.bytes as usize, 0);
        file.read_exact_at(&mut bytes, piece.offset).is_err() || PieceHash::of(&bytes) != piece.hash
    };
    Ok(index.pieces().iter().filter(is_damaged).count())
}

/// Held while the store is changed.
fn lock(dir: &Path) -> anyhow::Result<Flock<File>> {
    // It is not made here: a mistyped name would become a store that no daemon offers.
    let file = File::open(dir)
        .with_context(|| format!("cannot open the model store {} (mkdir makes a new one)", dir.display()))?;
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(lock),
        Err((_, nix::errno::Errno::EWOULDBLOCK)) => bail!("another ferryd is changing {}", dir.display()),
        Err((_, error)) => Err(error).with_context(|| format!("cannot lock {}", dir.display())),
    }
}

/// Removes what one that was killed left behind.
fn sweep(dir: &Path) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(UNFINISHED_PREFIX) {
            std::fs::remove_file(entry.path()).context("cannot remove what is unfinished")?;
        }
    }
    Ok(())
}

/// What a model is called in the store: as its file, if that is a name that an index can have.
fn name_of(file: &Path) -> anyhow::Result<&str> {
    let name = file.file_name().and_then(|name| name.to_str());
    let usable = |name: &&str| !name.starts_with('.') && !name.ends_with(INDEX_SUFFIX);
    name.filter(usable).with_context(|| format!("{} has no name that a store can keep", file.display()))
}

fn tensors_of(mut file: &File) -> anyhow::Result<Tensors> {
    file.rewind()?;
    Ok(gguf::tensors(BufReader::new(file), file.metadata()?.len())?)
}

/// The pieces of the tensors that guests ask for.
fn pieces_of(file: &File, tensors: Tensors) -> anyhow::Result<Vec<Piece>> {
    let mut pieces = Vec::new();
    let mut bytes = Vec::new();
    for tensor in tensors.known.iter().filter(|tensor| tensor.bytes >= STORE_TENSOR_BYTES_MIN as u64) {
        let mut at = 0;
        while at < tensor.bytes {
            let (offset, len) = (tensor.offset + at, (tensor.bytes - at).min(STORE_PIECE_BYTES as u64));
            bytes.resize(len as usize, 0);
            file.read_exact_at(&mut bytes, offset).context("cannot read it")?;
            pieces.push(Piece { hash: PieceHash::of(&bytes), offset, bytes: len as u32, reserved: 0 });
            at += len;
        }
    }
    Ok(pieces)
}

/// Workers would not use what is beyond their limits.
fn check_room(dir: &Path, more: usize) -> anyhow::Result<()> {
    let there = list(dir)?;
    let pieces: usize = there.iter().flatten().map(|entry| entry.pieces).sum();
    if there.len() >= MODELS_MAX || pieces + more > PIECES_MAX {
        let models = there.len();
        bail!(
            "the store has {pieces} pieces in {models} models; with {more} pieces in one more it would exceed \
             {PIECES_MAX} in {MODELS_MAX}"
        );
    }
    Ok(())
}

fn unfinished(dir: &Path) -> anyhow::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder
        .prefix(UNFINISHED_PREFIX)
        .tempfile_in(dir)
        .with_context(|| format!("cannot write to {}", dir.display()))
}

/// Gives a file its name when its bytes are on disk.
fn finish(file: NamedTempFile, path: &Path) -> anyhow::Result<()> {
    file.as_file().set_permissions(Permissions::from_mode(MODE))?;
    file.as_file().sync_all().context("cannot write it to disk")?;
    file.persist(path).with_context(|| format!("cannot name {}", path.display()))?;
    Ok(())
}
