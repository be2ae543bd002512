//! `tidegate scenario soak` and `tidegate scenario measure`

use region::units::Tokens;
use scenarios::measure::{Figure, Target, measure};
use scenarios::sim::{Broken, Run, Scenario};
use scenarios::soak::{fewest_faults, soak};
use serde_json::{Value, json};

use super::{Exit, Failure, Measure, Soak};
use crate::output;

/// A seed whose world broke the promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("seed {0} breaks the promise")]
pub struct BrokenSeed(u64);

/// What a soak has come to so far.
#[derive(Debug, Default)]
struct Soaked {
    done: u64,
    events: u64,
    lent: u64,
    /// Worlds in which the limit was exceeded, by what the policy or the faults allow.
    cost: u64,
    failed: Option<Failed>,
}

/// A world that broke the promise.
#[derive(Debug)]
struct Failed {
    seed: u64,
    /// What broke first.
    broken: Broken,
    /// The same world with the faults that it needs to break, and how it went.
    fewest: (Scenario, Run),
}

impl Soak {
    pub(super) fn run(&self) -> Result<Exit, Failure> {
        let mut soaked = Soaked::default();
        for seed in self.from..self.from.saturating_add(self.seeds) {
            output::progress("soak", soaked.done, self.seeds).map_err(Failure::Output)?;
            let run = soak(seed);
            soaked.done += 1;
            soaked.events += run.events;
            soaked.lent += u64::from(run.shares.len() > run.regions.len());
            soaked.cost += u64::from(run.overrun > Tokens(0));
            if let Some(broken) = run.broken {
                let fewest = fewest_faults(seed);
                soaked.failed = Some(Failed {
                    seed,
                    broken,
                    fewest,
                });
                break;
            }
        }
        output::progress_ends().map_err(Failure::Output)?;
        let text = if self.json {
            self.json(&soaked).to_string()
        } else {
            self.text(&soaked)
        };
        output::line(&text).map_err(Failure::Output)?;
        match soaked.failed {
            Some(failed) => Err(Failure::Broken(BrokenSeed(failed.seed))),
            None => Ok(Exit::Done),
        }
    }

    fn text(&self, soaked: &Soaked) -> String {
        let (from, done) = (self.from, soaked.done);
        let (events, lent, cost) = (soaked.events, soaked.lent, soaked.cost);
        match &soaked.failed {
            Some(failed) => failed.text(),
            None => format!(
                "the promise held in {done} worlds from seed {from} on: {events} events; shares \
                 moved in {lent} of them; in {cost} the limit was exceeded, within the bound"
            ),
        }
    }

    fn json(&self, soaked: &Soaked) -> Value {
        let failed = soaked.failed.as_ref().map(Failed::json);
        json!({
            "ok": failed.is_none(),
            "from": self.from,
            "seeds": soaked.done,
            "events": soaked.events,
            "shares_moved": soaked.lent,
            "worlds_with_overrun": soaked.cost,
            "failed": failed,
        })
    }
}

impl Failed {
    fn text(&self) -> String {
        let (world, run) = &self.fewest;
        let (at, what) = (self.broken.at.as_secs_f64(), &self.broken.what);
        let (trace, replay) = (run.trace.join("\n"), self.replay());
        format!(
            "seed {} breaks the promise at {at:.6}s: {what}\n\nThe same with the fewest faults:\n\
             {world}\n{trace}\n\nreplay: {replay}",
            self.seed
        )
    }

    fn json(&self) -> Value {
        let (world, run) = &self.fewest;
        json!({
            "seed": self.seed,
            "at_s": self.broken.at.as_secs_f64(),
            "what": self.broken.what,
            "world": world.to_string(),
            "trace": run.trace,
            "replay": self.replay(),
        })
    }

    fn replay(&self) -> String {
        format!("tidegate scenario soak --from {} --seeds 1", self.seed)
    }
}

impl Measure {
    pub(super) fn run(&self) -> Result<Exit, Failure> {
        let mut closed = Ok(());
        let figures = measure(&self.only, |done, all| {
            let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
            let told = output::progress("measure", count(done), count(all));
            closed = std::mem::replace(&mut closed, Ok(())).and(told);
        });
        closed.map_err(Failure::Output)?;
        output::progress_ends().map_err(Failure::Output)?;
        let text = if self.json {
            let all_met = figures.iter().all(Figure::met);
            let figures: Vec<Value> = figures.iter().map(figure_json).collect();
            json!({ "ok": all_met, "figures": figures }).to_string()
        } else {
            table(&figures)
        };
        output::line(&text).map_err(Failure::Output)?;
        Ok(Exit::Done)
    }
}

fn figure_json(figure: &Figure) -> Value {
    let (at_least, at_most) = match figure.target {
        None => (None, None),
        Some(Target::AtLeast(least)) => (Some(least), None),
        Some(Target::AtMost(most)) => (None, Some(most)),
    };
    json!({
        "measure": figure.measure,
        "case": figure.case,
        "value": figure.value,
        "unit": figure.unit,
        "at_least": at_least,
        "at_most": at_most,
        "met": figure.met(),
    })
}

/// A table in Markdown, which reads well in a terminal too.
fn table(figures: &[Figure]) -> String {
    let mut lines = vec![
        "| measure | case | value | unit | target | met |".to_owned(),
        "|---|---|---:|---|---|---|".to_owned(),
    ];
    lines.extend(figures.iter().map(|figure| {
        let value = figure
            .value
            .map_or_else(|| "not reached".to_owned(), number);
        let target = match figure.target {
            None => String::new(),
            Some(Target::AtLeast(least)) => format!(">= {}", number(least)),
            Some(Target::AtMost(most)) => format!("<= {}", number(most)),
        };
        let met = match (figure.target, figure.met()) {
            (None, _) => "",
            (Some(_), true) => "yes",
            (Some(_), false) => "no",
        };
        format!(
            "| {} | {} | {value} | {} | {target} | {met} |",
            figure.measure, figure.case, figure.unit
        )
    }));
    lines.join("\n")
}

fn number(value: f64) -> String {
    if value.fract() == 0.0 {
        format!("{value:.0}")
    } else if value.abs() >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.4}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_says_which_targets_are_met() {
        let figure = |value| Figure {
            measure: "reaction",
            case: "all demand moves".to_owned(),
            value,
            unit: "ms",
            target: Some(Target::AtMost(350.0)),
        };
        let table = table(&[figure(Some(120.25)), figure(None)]);
        assert!(table.contains("| 120.2 | ms | <= 350 | yes |"), "{table}");
        assert!(
            table.contains("| not reached | ms | <= 350 | no |"),
            "{table}"
        );
    }

    #[test]
    fn soak_ends_well_where_no_seed_is_asked_for() {
        let soak = Soak {
            seeds: 0,
            from: 5,
            json: true,
        };
        assert_eq!(soak.json(&Soaked::default())["ok"], true);
        assert!(matches!(soak.run(), Ok(Exit::Done)));
    }
}
