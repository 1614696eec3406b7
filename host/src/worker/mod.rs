//! The process that serves one guest process: validates, owns the guest's objects, calls ggml. Whatever goes wrong in
//! here, or in a driver below, takes this process alone.

mod dispatch;
mod from_store;
mod objects;
mod refusal;
mod regions;
mod stats;

pub use regions::{RegionSource, Sharing};

use crate::ggml::Library;
use crate::store::Shelf;
use anyhow::Context;
use dispatch::{Replies, Session};
use ferry_protocol::channel::spin::{Next, Spin};
use ferry_protocol::channel::{Broken, Interest, Receiver, Waiter};
use ferry_unix::Channel;
use regions::Regions;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How a worker serves.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where the counters go at the end.
    pub stats: Option<PathBuf>,
    /// How long to look for the next message before sleeping, at most; `None` for what suits the machine.
    pub spin: Option<Duration>,
    /// Where weights are that guests need not send.
    pub model_store: Option<PathBuf>,
    /// The guest's process, for the log.
    pub client_pid: u32,
}

/// Serves the guest at the other end of `channel` until it goes away.
pub fn serve(
    library: Arc<Library>,
    channel: Channel,
    sharing: Option<Sharing>,
    config: &Config,
) -> anyhow::Result<()> {
    let Channel { sender, mut receiver, waiter, counters } = channel;
    let mut replies = Replies { sender, waiter: waiter.clone() };
    let shelf = config.model_store.clone().map(Shelf::new);
    let mut session = Session::new(library, Regions::new(sharing), shelf, config.client_pid);
    let mut spin = Spin::new(config.spin);
    let ended = loop {
        if let Err(error) = serve_or_sleep(&mut *receiver, &*waiter, &mut spin, &mut session, &mut replies) {
            break error;
        }
    };
    (session.stats.doorbells, session.stats.waits) = counters.read();
    session.stats.measure_memory();
    if let Some(path) = &config.stats {
        session.stats.append_to(path).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let stats = session.stats;
    match ended {
        Broken::Closed => {
            tracing::info!(
                client_pid = config.client_pid,
                graphs = stats.graphs,
                nodes = stats.nodes,
                buffer_bytes_max = stats.buffer_bytes_max,
                own_bytes = stats.own_bytes,
                "session ended"
            );
            Ok(())
        }
        error => Err(error).context("session broken off"),
    }
}

/// Serves what is there; if nothing comes for a while, sleeps.
fn serve_or_sleep(
    receiver: &mut dyn Receiver,
    waiter: &dyn Waiter,
    spin: &mut Spin,
    session: &mut Session,
    replies: &mut Replies,
) -> Result<(), Broken> {
    let mut idle = None;
    loop {
        let mut outcome = Ok(());
        if receiver.try_receive(&mut |header, payload| {
            if let Some(idle) = idle.take() {
                spin.end(&idle, Instant::now());
            }
            spin.follow(header.call);
            outcome = session.serve(header, payload, replies);
        })? {
            outcome?;
            continue;
        }
        replies.flush()?;
        let now = Instant::now();
        let waiting = idle.get_or_insert_with(|| spin.begin(now));
        if let Next::Sleep(timeout) = waiting.next(now) {
            waiter.wait(Interest::RECORDS, timeout)?;
            spin.end(waiting, Instant::now());
            return Ok(());
        }
        std::hint::spin_loop();
    }
}
