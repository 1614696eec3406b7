//! What `cargo speed` writes down.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use super::arms::{ArmKind, Contender};
use super::{Options, phases};
use crate::bench::{Arm, Ratio, spread};
use crate::llama::THREADS;

/// What a generated token costs beside its computation.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Account {
    /// Messages that the guest sent.
    pub messages: f64,
    /// Times that the guest woke the worker: in a virtual machine, exits.
    pub guest_doorbells: f64,
    /// Times that the guest slept.
    pub guest_waits: f64,
    /// Times that the worker woke the guest.
    pub host_doorbells: f64,
    /// Times that the worker slept.
    pub host_waits: f64,
}

#[derive(Debug, Serialize)]
struct Row {
    model: String,
    phase: String,
    arm: &'static str,
    backend: String,
    unit: String,
    median: f64,
    min: f64,
    max: f64,
    /// What each round gave, in their order.
    figures: Vec<f64>,
    /// To the first arm: the median of the ratios in the same round. Of speeds, more is better; of times, less.
    ratio_to_first: f64,
    /// Where it lies, with 95 % confidence if there were six rounds.
    ratio_low: f64,
    ratio_high: f64,
    /// The same to what does the same in the same place, of an arm of Ferry's.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    to_peers: BTreeMap<&'static str, Ratio>,
    /// Of generated tokens, through Ferry.
    #[serde(skip_serializing_if = "Option::is_none")]
    per_token: Option<Account>,
}

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub struct Report {
    rounds: u32,
    repetitions: u32,
    threads: &'static str,
    rows: Vec<Row>,
    #[serde(skip)]
    backend: String,
    #[serde(skip)]
    phases: Vec<String>,
}

impl Report {
    /// Nothing yet.
    pub fn new(options: &Options) -> Self {
        let (backend, phases) = (options.backend.clone(), phases(options));
        let Options { rounds, repetitions, .. } = *options;
        Self { rounds, repetitions, threads: THREADS, rows: Vec::new(), backend, phases }
    }

    /// What was measured with a model.
    pub fn add(&mut self, model: &str, contenders: &[Contender], arms: &[Arm], accounts: &[Option<Account>]) {
        for (at, title) in self.phases.iter().enumerate() {
            let (phase, unit) = title.split_once(' ').unwrap_or((title, ""));
            for ((contender, arm), account) in contenders.iter().zip(arms).zip(accounts) {
                let (spread, ratio) = (spread(arm.column(at)), arm.ratio(&arms[0], at));
                self.rows.push(Row {
                    model: model.into(),
                    phase: phase.into(),
                    arm: contender.kind.name(),
                    backend: self.backend.clone(),
                    unit: unit.into(),
                    median: spread.median,
                    min: spread.min,
                    max: spread.max,
                    figures: arm.column(at).collect(),
                    ratio_to_first: ratio.median,
                    ratio_low: ratio.low,
                    ratio_high: ratio.high,
                    to_peers: peers(contender, contenders, arms)
                        .map(|(kind, peer)| (kind.name(), arm.ratio(peer, at)))
                        .collect(),
                    per_token: account.filter(|_| phase.starts_with("tg")),
                });
            }
        }
    }

    /// Writes it as JSON.
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut json = serde_json::to_string_pretty(self)?;
        json.push('\n');
        fs::write(path, json).with_context(|| format!("writing {}", path.display()))
    }
}

/// The arms that do the same as one of Ferry's.
fn peers<'a>(
    contender: &Contender,
    contenders: &'a [Contender],
    arms: &'a [Arm],
) -> impl Iterator<Item = (ArmKind, &'a Arm)> {
    let kinds = contender.kind.peers();
    let all = contenders.iter().zip(arms);
    all.filter(|(other, _)| kinds.contains(&other.kind)).map(|(other, arm)| (other.kind, arm))
}

/// A line for each peer of each arm of Ferry's.
pub fn peers_text(contenders: &[Contender], arms: &[Arm], phases: &[String]) -> String {
    let mut text = String::new();
    for (contender, arm) in contenders.iter().zip(arms) {
        for (_, peer) in peers(contender, contenders, arms) {
            let ratio = |(at, phase): (usize, &String)| {
                let phase = phase.split_once(' ').map_or(phase.as_str(), |(phase, _)| phase);
                format!("{phase} {}", arm.ratio(peer, at))
            };
            let ratios: Vec<String> = phases.iter().enumerate().map(ratio).collect();
            let _ = writeln!(text, "{} to {}: {}", arm.name, peer.name, ratios.join(", "));
        }
    }
    text
}

/// A line for each arm that has an account.
pub fn accounts_text(contenders: &[Contender], accounts: &[Option<Account>]) -> String {
    let mut text = String::new();
    for (contender, account) in contenders.iter().zip(accounts) {
        let Some(account) = account else { continue };
        let name = contender.kind.name();
        let Account { messages, guest_doorbells, guest_waits, host_doorbells, host_waits } = account;
        let _ = writeln!(
            text,
            "{name}, a token: {messages:.2} messages; guest: {guest_doorbells:.2} doorbells, {guest_waits:.2} sleeps; \
             worker: {host_doorbells:.2} doorbells, {host_waits:.2} sleeps"
        );
    }
    text
}
