//! `llama-server`: answers in four slots, one at a time and all at once, and embeddings.

use std::net::TcpListener;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::row::{Row, Tally};
use super::site::Site;
use crate::llama::{Device, RUN_TIMEOUT, THREADS};
use crate::process::{self, Running};
use crate::progress::Step;

/// One prompt for each of the server's slots.
const PROMPTS: [&str; 4] = [
    "The three largest rivers of Europe are",
    "A ferry is a boat that",
    "Once upon a time there was a",
    "Two and two are four, and three and three are",
];
const TOKENS: usize = 32;
/// How far the numbers of an embedding may be apart.
const EMBEDDING_ERROR: f64 = 1e-5;
/// From SIGTERM to the server's end.
const STOP_PATIENCE: Duration = Duration::from_secs(10);

type Tokens = Vec<u64>;

/// A running server, reachable on loopback only.
struct Server {
    running: Running,
    agent: ureq::Agent,
    port: u16,
}

impl Server {
    fn start(site: &Site, device: &Device, more: &[&str]) -> Result<Self> {
        // The port is free a moment before the server takes it; somebody else could take it in between.
        let port = TcpListener::bind("127.0.0.1:0").context("looking for a free port")?.local_addr()?.port();
        let mut command = site.llama.program("llama-server", device)?;
        command.arg("--model").arg(site.model()?).args(["--host", "127.0.0.1", "--port", &port.to_string()]);
        command.args(["--threads", THREADS, "--parallel", &PROMPTS.len().to_string(), "--ctx-size", "2048"]);
        command.args(["--no-warmup", "--fit", "off"]).args(more);
        let agent = ureq::Agent::config_builder().timeout_global(Some(RUN_TIMEOUT)).build().into();
        let mut server = Self { running: process::spawn(&mut command)?, agent, port };
        let (agent, health) = (server.agent.clone(), server.url("health"));
        server.running.wait_until("healthy", RUN_TIMEOUT, |_| agent.get(&health).call().is_ok())?;
        Ok(server)
    }

    fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}/{path}", self.port)
    }

    fn post(&self, path: &str, body: &Value) -> Result<Value> {
        let request = self.agent.post(self.url(path)).header("Content-Type", "application/json");
        let answer = request.send(body.to_string());
        let mut answer = answer.with_context(|| format!("{path}\n{}", self.running.stderr()))?;
        let text =
            answer.body_mut().read_to_string().with_context(|| format!("reading the answer to {path}"))?;
        serde_json::from_str(&text).with_context(|| format!("{path} answers {text:?}"))
    }

    /// The greedy answers to one prompt, or to several at once. Those of one request begin in the same batch, whatever the
    /// time: on a GPU batches of another size are computed by other kernels, which round otherwise.
    fn complete(&self, prompt: &Value) -> Result<Value> {
        self.post(
            "completion",
            &json!({
                "prompt": prompt, "n_predict": TOKENS, "temperature": 0, "seed": 1, "cache_prompt": false,
                "ignore_eos": true, "return_tokens": true,
            }),
        )
    }

    fn answers(&self) -> Result<Vec<Tokens>> {
        PROMPTS.iter().map(|&prompt| tokens(&self.complete(&json!(prompt))?)).collect()
    }

    fn answers_at_once(&self) -> Result<Vec<Tokens>> {
        let answers = self.complete(&json!(PROMPTS))?;
        let answers = answers.as_array().with_context(|| format!("no list of answers: {answers}"))?;
        ensure!(answers.len() == PROMPTS.len(), "{} answers", answers.len());
        answers.iter().map(tokens).collect()
    }

    fn embeddings(&self) -> Result<Vec<Vec<f64>>> {
        let answer = self.post("v1/embeddings", &json!({ "input": PROMPTS }))?;
        let data = answer["data"].as_array().with_context(|| format!("no embeddings: {answer}"))?;
        data.iter().map(|one| Ok(serde_json::from_value(one["embedding"].clone())?)).collect()
    }

    /// Ends it. Returns the process that it was.
    fn stop(mut self) -> Result<i32> {
        let pid = self.running.pid().as_raw();
        ensure!(self.running.stop(STOP_PATIENCE), "llama-server did not end on SIGTERM");
        Ok(pid)
    }
}

/// The server says through Ferry what it says natively.
pub fn test(site: &Site) -> Result<Vec<Row>> {
    let mut tally = Tally::default();
    let step = Step::begin("llama-server natively and through Ferry");
    let server = Server::start(site, &site.native, &[])?;
    let (native, native_together) = (server.answers()?, server.answers_at_once()?);
    server.stop()?;
    let daemon = site.daemon()?;
    let server = Server::start(site, &Device::Ferry(daemon.socket()), &[])?;
    let (alone, together) = (server.answers()?, server.answers_at_once()?);
    let session = daemon.successful_session_of(server.stop()?)?;
    let tokens = PROMPTS.len() * TOKENS;
    // Alone each token is a graph; together four may be one.
    let graphs_min = (tokens + TOKENS) as u64;
    ensure!(session.graphs >= graphs_min, "not all of it was the worker's: {session:?}");
    for (slot, prompt) in PROMPTS.iter().enumerate() {
        let (alone, native) = (&alone[slot], &native[slot]);
        tally.check(format!("{prompt:?} alone"), alone == native, || {
            format!("the answer is {alone:?}, natively {native:?}")
        });
        // On a CPU a batch's size changes nothing.
        let native = if site.backend == "cpu" { native } else { &native_together[slot] };
        let together = &together[slot];
        tally.check(format!("{prompt:?} with three others"), together == native, || {
            format!("the answer is {together:?}, natively {native:?}")
        });
    }
    embed(site, &mut tally)?;
    step.done();
    Ok(vec![site.row("`llama-server`, 4 slots: answers, embeddings", tally)])
}

/// The tokens of an answer.
fn tokens(answer: &Value) -> Result<Tokens> {
    let tokens: Tokens = serde_json::from_value(answer["tokens"].clone())?;
    ensure!(tokens.len() == TOKENS, "{} tokens, not {TOKENS}: {answer}", tokens.len());
    Ok(tokens)
}

fn embed(site: &Site, tally: &mut Tally) -> Result<()> {
    let arguments = ["--embeddings", "--pooling", "mean"];
    let server = Server::start(site, &site.native, &arguments)?;
    let native = server.embeddings()?;
    server.stop()?;
    let daemon = site.daemon()?;
    let server = Server::start(site, &Device::Ferry(daemon.socket()), &arguments)?;
    let ferry = server.embeddings()?;
    daemon.successful_session_of(server.stop()?)?;
    ensure!(ferry.len() == PROMPTS.len() && native.len() == PROMPTS.len(), "{} embeddings", ferry.len());
    for (prompt, (ferry, native)) in PROMPTS.iter().zip(ferry.iter().zip(&native)) {
        tally.count(format!("embedding of {prompt:?}"), near(ferry, native));
    }
    Ok(())
}

fn near(ferry: &[f64], native: &[f64]) -> Result<()> {
    ensure!(
        ferry.len() == native.len() && !ferry.is_empty(),
        "{} numbers, not {}",
        ferry.len(),
        native.len()
    );
    let differences = ferry.iter().zip(native).map(|(ferry, native)| (ferry - native).abs());
    let error =
        differences.fold(0.0, |largest, difference| if difference > largest { difference } else { largest });
    let length = native.iter().map(|number| number * number).sum::<f64>().sqrt();
    ensure!((length - 1.0).abs() < 1e-3, "natively its length is {length}");
    ensure!(error <= EMBEDDING_ERROR, "apart by {error}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embeddings_must_be_near_and_something() {
        assert!(near(&[0.6, 0.8], &[0.6, 0.800_001]).is_ok());
        assert!(near(&[0.6, 0.801], &[0.6, 0.8]).is_err());
        assert!(near(&[0.0, 0.0], &[0.0, 0.0]).is_err() && near(&[], &[]).is_err());
        assert!(near(&[0.6, 0.8, 0.0], &[0.6, 0.8]).is_err());
    }
}
