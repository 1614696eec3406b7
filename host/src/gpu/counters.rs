//! What happened, counted by the device: independent of what guest and worker say about it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counters of one VM's device. All but the gauges only grow.
        #[derive(Debug, Default)]
        pub struct Counters { $($(#[$doc])* pub(super) $name: AtomicU64),* }

        /// The [`Counters`] at one moment; fields are read one after the other, not as one.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Snapshot { $($(#[$doc])* pub $name: u64),* }

        impl Counters {
            /// Reads all counters.
            pub fn snapshot(&self) -> Snapshot {
                Snapshot { $($name: self.$name.load(Relaxed)),* }
            }

            /// Names and values, for metrics.
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.load(Relaxed))),*]
            }
        }
    };
}

counters! {
    /// Times the guest kicked the control queue and was heard (several kicks may be heard as one).
    kicks,
    /// Commands taken from the control queue.
    commands,
    /// Of these, the ones answered with an error.
    errors,
    /// Chains without room for an answer or too long to read, completed unanswered.
    broken_chains,
    /// EXECBUFFERs, whatever they carry.
    execbuffers,
    /// Of these, doorbells.
    doorbells,
    /// Fences held.
    fences_armed,
    /// Held fences completed because the worker had news.
    fences_signalled,
    /// Held fences completed because their time was up.
    fences_expired,
    /// Held fences completed because their session, or the device, held too many.
    fences_displaced,
    /// Fences that asked to be held and were completed at once, because news came first.
    fences_immediate,
    /// Interrupts raised in the guest.
    interrupts,
    /// Sessions opened.
    sessions_opened,
    /// Sessions whose worker went away on its own.
    sessions_lost,
    /// Gauge: contexts.
    contexts,
    /// Gauge: resources.
    resources,
    /// Gauge: bytes of guest memory that workers may have mapped.
    mapped_bytes,
}

impl Counters {
    pub(super) fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Relaxed);
    }

    pub(super) fn set(gauge: &AtomicU64, value: u64) {
        gauge.store(value, Relaxed);
    }
}
