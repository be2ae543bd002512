//! `tidegate certs init`

use super::{CertsInit, Exit, Failure};
use crate::{certs, output};

impl CertsInit {
    pub(super) fn run(self) -> Result<Exit, Failure> {
        let made = certs::init(&self.regions, &self.out)?;
        for path in &made {
            output::line(&path.display().to_string()).map_err(Failure::Output)?;
        }
        if made.is_empty() {
            output::line("nothing to make: all of it is there").map_err(Failure::Output)?;
        }
        Ok(Exit::Done)
    }
}
