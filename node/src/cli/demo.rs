//! `tidegate demo`

use tokio::runtime::Builder;

use super::{Demo, Exit, Failure};
use crate::demo::{self, Options};
use crate::output;

impl Demo {
    pub(super) fn run(&self) -> Result<Exit, Failure> {
        let runtime = Builder::new_multi_thread()
            .enable_all()
            .build()
            .map_err(Failure::Start)?;
        let options = Options {
            length: self.length,
            quiet: self.json,
            seed: self.seed,
        };
        let report = runtime
            .block_on(demo::run(options))
            .map_err(Failure::Demo)?;
        let text = if self.json {
            serde_json::to_string(&report).map_err(|error| Failure::Output(error.into()))?
        } else {
            format!("\n{}", report.table())
        };
        output::line(text.trim_end()).map_err(Failure::Output)?;
        Ok(Exit::Done)
    }
}
