//! Held fences: EXECBUFFERs whose answer is ready but not handed to the guest until there is news, so that a guest
//! process can sleep in its kernel. A fence is a wake-up, never a proof; all held fences of a session end together.
//!
//! ```text
//!   doorbell, armed ──► held ──┬─ signal(session)   the worker has news
//!                       ▲      ├─ lost(session)     the worker is gone
//!                       │      ├─ deadline          1 s, without news
//!          news came    │      ├─ one too many held: the oldest
//!          first: at once      └─ queue stopped, session closed
//! ```
//!
//! This has a lock of its own. The device's thread may wait for a worker's acknowledgement with the device locked,
//! while the thread that hears the worker must still be able to wake the guest.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use ferry_protocol::virtgpu::SessionState;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use super::context::SessionId;
use super::counters::Counters;
use super::limits::{FENCE_DEADLINE, MAX_ARMED_FENCES_PER_DEVICE, MAX_ARMED_FENCES_PER_SESSION};
use super::queue::Ring;

/// Wakes guest processes, from any thread. Clones are of one device.
#[derive(Clone)]
pub struct Wakeups {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    counters: Arc<Counters>,
}

#[derive(Default)]
struct State {
    sessions: HashMap<SessionId, Entry>,
    /// In the order of arming, which is that of the deadlines.
    armed: VecDeque<Armed>,
    /// As the device last looked at it. The VMM replaces it before the device knows which sessions that moves, and a
    /// session lost in between is still announced where its page was.
    memory: Option<Arc<GuestMemoryMmap>>,
    /// When the guest's first command is overdue, if it is awaited.
    first_command: Option<Instant>,
    closed: bool,
}

struct Entry {
    /// Where the guest looks for the session's state.
    state_word: GuestAddress,
    /// A signal came while nothing was held: the next fence is not held.
    news: bool,
    lost: bool,
    /// The device ends it: that its worker goes is no news.
    closing: bool,
}

struct Armed {
    session: SessionId,
    ring: Arc<dyn Ring>,
    head: u16,
    len: u32,
    deadline: Instant,
}

impl Wakeups {
    /// For one device; hand a clone to whatever hears the workers.
    pub fn new() -> Wakeups {
        let shared = Shared { state: Mutex::default(), changed: Condvar::new(), counters: Arc::default() };
        Wakeups { shared: Arc::new(shared) }
    }

    /// The device's counters.
    pub fn counters(&self) -> Arc<Counters> {
        self.shared.counters.clone()
    }

    /// The session's worker has news: ends all its held fences. If none is held, the next one is not held either,
    /// so a signal that overtakes the doorbell is not lost. Unknown sessions are passed over.
    pub fn signal(&self, session: SessionId) {
        let mut state = self.lock();
        let Some(entry) = state.sessions.get_mut(&session) else { return };
        entry.news = true;
        self.wake(&mut state, session);
    }

    /// The session's worker is gone *and reaped*: writes [`SessionState::LOST`] into the arena, ends its held
    /// fences, and holds none from now on.
    pub fn lost(&self, session: SessionId) {
        let mut state = self.lock();
        let Some(entry) = state.sessions.get_mut(&session) else { return };
        if !entry.closing && !std::mem::replace(&mut entry.lost, true) {
            Counters::add(&self.shared.counters.sessions_lost);
            self.announce(&state, session, SessionState::LOST);
            self.wake(&mut state, session);
        }
    }

    /// Ends the held fences of `session`; news is used up only by a fence that it ended.
    fn wake(&self, state: &mut State, session: SessionId) {
        let ended = self.finish(state, |armed| armed.session == session);
        for _ in 0..ended {
            Counters::add(&self.shared.counters.fences_signalled);
        }
        if let (1.., Some(entry)) = (ended, state.sessions.get_mut(&session)) {
            entry.news = false;
        }
    }

    /// Ends all held fences that `which` picks and tells how many.
    fn finish(&self, state: &mut State, which: impl Fn(&Armed) -> bool) -> usize {
        let (ended, kept): (VecDeque<_>, VecDeque<_>) = state.armed.drain(..).partition(which);
        state.armed = kept;
        for armed in &ended {
            armed.ring.complete(armed.head, armed.len);
        }
        // All of them came from one control queue: one interrupt tells of them all.
        if let Some(armed) = ended.back() {
            interrupt(armed.ring.as_ref(), &self.shared.counters);
        }
        ended.len()
    }

    /// Writes a session's state word; a guest that took its memory away does not get to hear it.
    fn announce(&self, state: &State, session: SessionId, word: SessionState) {
        let (Some(entry), Some(memory)) = (state.sessions.get(&session), &state.memory) else { return };
        // Unwritable memory is the guest's own doing; there is nobody to tell.
        let _ = memory.store(word.0.to_le(), entry.state_word, std::sync::atomic::Ordering::Release);
    }

    pub(super) fn set_memory(&self, memory: Option<Arc<GuestMemoryMmap>>) {
        self.lock().memory = memory;
    }

    /// A new session, with its state word in the arena. Announces [`SessionState::OPEN`].
    pub(super) fn register(&self, session: SessionId, state_word: GuestAddress) {
        let mut state = self.lock();
        state.sessions.insert(session, Entry { state_word, news: false, lost: false, closing: false });
        self.announce(&state, session, SessionState::OPEN);
    }

    /// The device is about to end the session: from now on its worker may go without a word.
    pub(super) fn closing(&self, session: SessionId) {
        if let Some(entry) = self.lock().sessions.get_mut(&session) {
            entry.closing = true;
        }
    }

    /// The session is over: ends its held fences, and with `tell` announces [`SessionState::LOST`] first.
    pub(super) fn forget(&self, session: SessionId, tell: bool) {
        let mut state = self.lock();
        if tell {
            self.announce(&state, session, SessionState::LOST);
        }
        self.wake(&mut state, session);
        state.sessions.remove(&session);
    }

    pub(super) fn is_lost(&self, session: SessionId) -> bool {
        self.lock().sessions.get(&session).is_none_or(|entry| entry.lost)
    }

    /// Sessions whose worker is still there.
    pub(super) fn live_sessions(&self) -> usize {
        self.lock().sessions.values().filter(|entry| !entry.lost).count()
    }

    /// Holds the answered chain `head` for `session`, or says no, because there is news already: then the caller
    /// completes it at once. One fence too many ends the oldest, never the new one: without CONTEXT_INIT the guest
    /// kernel takes the end of a fence for the end of all older ones of the device, so that the newest would wake
    /// every sleeper, each of which would arm again and again be one too many.
    pub(super) fn arm(
        &self,
        session: SessionId,
        ring: &Arc<dyn Ring>,
        head: u16,
        len: u32,
        now: Instant,
    ) -> bool {
        let mut guard = self.lock();
        let state = &mut *guard;
        let entry = state.sessions.get_mut(&session);
        if !entry.is_some_and(|entry| !entry.lost && !std::mem::take(&mut entry.news)) {
            Counters::add(&self.shared.counters.fences_immediate);
            return false;
        }
        self.displace(state, MAX_ARMED_FENCES_PER_SESSION, |armed| armed.session == session);
        self.displace(state, MAX_ARMED_FENCES_PER_DEVICE, |_| true);
        let deadline = now + FENCE_DEADLINE;
        state.armed.push_back(Armed { session, ring: ring.clone(), head, len, deadline });
        Counters::add(&self.shared.counters.fences_armed);
        self.shared.changed.notify_all();
        true
    }

    /// Ends the oldest fence that `which` picks if there are `limit` of them.
    fn displace(&self, state: &mut State, limit: usize, which: impl Fn(&Armed) -> bool) {
        let mut picked = state.armed.iter().enumerate().filter(|(_, armed)| which(armed)).map(|(at, _)| at);
        let oldest = picked.next();
        if 1 + picked.count() < limit {
            return;
        }
        if let Some(armed) = oldest.and_then(|at| state.armed.remove(at)) {
            armed.ring.complete(armed.head, armed.len);
            interrupt(armed.ring.as_ref(), &self.shared.counters);
            Counters::add(&self.shared.counters.fences_displaced);
        }
    }

    /// Ends every held fence: the queue is about to stop, and what is in flight must not be left behind.
    pub(super) fn flush(&self) {
        let mut state = self.lock();
        let ended = self.finish(&mut state, |_| true);
        for _ in 0..ended {
            Counters::add(&self.shared.counters.fences_expired);
        }
    }

    /// Ends the fences whose time is up at `now` and tells when the next one's will be.
    fn expire(&self, state: &mut State, now: Instant) -> Option<Instant> {
        let ended = self.finish(state, |armed| armed.deadline <= now);
        for _ in 0..ended {
            Counters::add(&self.shared.counters.fences_expired);
        }
        state.armed.front().map(|armed| armed.deadline)
    }

    /// The guest's first command should be there at `deadline`, or is no longer awaited.
    pub(super) fn expect_command(&self, deadline: Option<Instant>) {
        self.lock().first_command = deadline;
        self.shared.changed.notify_all();
    }

    /// Complains if the first command is overdue at `now`, and tells when it will be.
    fn await_command(&self, state: &mut State, now: Instant) -> Option<Instant> {
        state.first_command = state.first_command.filter(|&deadline| {
            if deadline <= now {
                tracing::warn!(
                    "the guest has started the device, but the queue in the memory that the VMM shares stays empty: is \
                     the VM's memory backend made with share=on?"
                );
            }
            deadline > now
        });
        state.first_command
    }

    /// Keeps the deadlines until [`close`](Self::close).
    pub(super) fn spawn_timer(&self) -> std::io::Result<()> {
        let wakeups = self.clone();
        std::thread::Builder::new().name("fence-timer".into()).spawn(move || wakeups.keep_deadlines())?;
        Ok(())
    }

    fn keep_deadlines(&self) {
        let mut state = self.lock();
        while !state.closed {
            let changed = &self.shared.changed;
            let now = Instant::now();
            let deadlines = [self.expire(&mut state, now), self.await_command(&mut state, now)];
            state = match deadlines.into_iter().flatten().min() {
                None => changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(next) => {
                    let wait = changed.wait_timeout(state, next.saturating_duration_since(now));
                    wait.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Ends the timer's thread.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.shared.changed.notify_all();
    }

    /// The state is consistent between any two statements that can panic, so a poisoned lock is still good.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Wakeups {
    fn default() -> Wakeups {
        Wakeups::new()
    }
}

/// Raises the queue's interrupt unless the guest asked not to.
pub(super) fn interrupt(ring: &dyn Ring, counters: &Counters) {
    if ring.interrupt() {
        Counters::add(&counters.interrupts);
    }
}
