//! Ctrl-C and SIGTERM as a flag: whoever waits returns an error, and the guards on the way out clean up.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

static REQUESTED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Catches SIGINT, SIGTERM and SIGHUP from now on. A second one ends the process at once.
pub fn install() -> Result<()> {
    let flag = Arc::clone(REQUESTED.get_or_init(Default::default));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // Order matters: the first signal finds the flag still down, so only the second one ends us.
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&flag))
            .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&flag)))
            .context("catching signals")?;
    }
    Ok(())
}

/// Fails once a signal has arrived; called by everything that waits.
pub fn check() -> Result<()> {
    if REQUESTED.get().is_some_and(|flag| flag.load(Ordering::Relaxed)) {
        bail!("interrupted");
    }
    Ok(())
}
