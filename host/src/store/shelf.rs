//! The store as a worker reads it.

use super::index::{Index, PIECES_MAX};
use super::{MODELS_MAX, index_path, names, open_regular};
use ferry_protocol::limits::STORE_PIECE_BYTES;
use ferry_protocol::store::PieceHash;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;

/// Pieces that are read and hashed at once, each on a core of its own: one core hashes at a fraction of the speed at which
/// weights are uploaded. Each takes a piece's bytes of the worker's memory.
const AT_ONCE_MAX: usize = 4;

/// A model in the store.
struct Model {
    path: PathBuf,
    file: File,
    index: Index,
    /// Said once; the guest sends what is damaged, and everything goes on.
    damage_said: AtomicBool,
}

/// The models of a directory, from the first time on that something is looked for.
pub struct Shelf {
    dir: PathBuf,
    models: Option<Vec<Model>>,
    at_once: usize,
    /// What was read last.
    bytes: Vec<u8>,
}

/// A piece that a guest asks for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Its hash.
    pub hash: PieceHash,
    /// Its bytes, at most [`STORE_PIECE_BYTES`].
    pub bytes: usize,
}

impl Shelf {
    /// The store in `dir`, which nobody has looked at yet.
    pub fn new(dir: PathBuf) -> Self {
        let at_once = std::thread::available_parallelism().map_or(1, usize::from).min(AT_ONCE_MAX);
        Self { dir, models: None, at_once, bytes: Vec::new() }
    }

    /// Gives each of the `wanted` to `take`, in their order: a private copy, which was hashed, or `None` if there is none, or
    /// none that is whole.
    pub fn fetch(&mut self, wanted: &[Wanted], mut take: impl FnMut(Option<&[u8]>)) {
        let models = self.models.get_or_insert_with(|| open(&self.dir));
        for group in wanted.chunks(self.at_once) {
            self.bytes.resize(group.len() * STORE_PIECE_BYTES, 0);
            let places = self.bytes.chunks_mut(STORE_PIECE_BYTES).map(|place| &mut place[..]);
            let pairs: Vec<_> =
                group.iter().zip(places).map(|(piece, place)| (piece, &mut place[..piece.bytes])).collect();
            read_all(models, pairs).into_iter().for_each(&mut take);
        }
    }
}

type Pair<'a> = (&'a Wanted, &'a mut [u8]);

/// Reads each piece into its place, all at once.
fn read_all<'a>(models: &[Model], mut pairs: Vec<Pair<'a>>) -> Vec<Option<&'a [u8]>> {
    let read = |(wanted, place): Pair<'a>| -> Option<&'a [u8]> {
        models.iter().any(|model| model.read(wanted.hash, place)).then_some(&*place)
    };
    let Some(last) = pairs.pop() else { return Vec::new() };
    std::thread::scope(|scope| {
        let others: Vec<_> = pairs
            .into_iter()
            .map(|pair| Builder::new().spawn_scoped(scope, move || read(pair)).ok())
            .collect();
        let last = read(last);
        // What could not be started was not found, and is sent.
        let others = others.into_iter().map(|other| other?.join().ok()?);
        others.chain([last]).collect()
    })
}

impl Model {
    fn open(dir: &Path, name: &str) -> Result<Self, String> {
        let index = Index::read(&index_path(dir, name)).map_err(|error| format!("its index {error}"))?;
        let path = dir.join(name);
        let file = open_regular(&path).map_err(|error| error.to_string())?;
        Ok(Self { path, file, index, damage_said: AtomicBool::new(false) })
    }

    /// Reads a piece of this hash into `out`; whether there is one that is what it should be.
    fn read(&self, hash: PieceHash, out: &mut [u8]) -> bool {
        let (mut found, mut damage) = (false, None);
        for piece in self.index.find(hash, out.len()) {
            let read = self.file.read_exact_at(out, piece.offset);
            found = read.is_ok() && PieceHash::of(out) == hash;
            if found {
                break;
            }
            let what = read.map_or_else(|error| error.to_string(), |()| "not what they were".to_owned());
            damage = Some(format!("the bytes from {} on: {what}", piece.offset));
        }
        if let Some(damage) = damage.filter(|_| !self.damage_said.swap(true, Ordering::Relaxed)) {
            let model = self.path.display();
            tracing::warn!(
                "{model} is damaged: {damage}; guests send theirs instead; remove and add it again"
            );
        }
        found
    }
}

/// Opens every model that can be; the others get a line in the log.
fn open(dir: &Path) -> Vec<Model> {
    let names = names(dir).unwrap_or_else(|error| {
        tracing::warn!("cannot look into the model store {}: {error}", dir.display());
        Vec::new()
    });
    let (mut models, mut pieces) = (Vec::new(), 0);
    for name in names {
        let model = match Model::open(dir, &name) {
            Ok(model) => model,
            Err(error) => {
                tracing::warn!("{} is not used: {error}", dir.join(&name).display());
                continue;
            }
        };
        pieces += model.index.pieces().len();
        if models.len() == MODELS_MAX || pieces > PIECES_MAX {
            tracing::warn!(
                "{} and what follows is not used: the model store is too large",
                model.path.display()
            );
            break;
        }
        models.push(model);
    }
    models
}
