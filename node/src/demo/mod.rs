//! `tidegate demo`: one limit over three regions in one process, before your eyes.
//!
//! The nodes are whole: limiter, memory store, membership, ledger, planner and real QUIC. Only the
//! distance between them is made, by the link shaper. Every request is audited against one ideal
//! bucket.

mod record;
mod report;
mod screen;
mod script;
mod world;

use std::sync::Arc;
use std::time::{Duration, Instant};

use region::bound::{Bound, Fault};
use region::store::Loaded;
use tokio::time::{interval, sleep};
use tokio_util::sync::CancellationToken;

use self::record::Record;
pub use self::report::{PhaseReport, RegionReport, Report};
use self::screen::{RegionView, Screen, View};
use self::script::{BURST, LIMIT, PHASES, REGIONS};
use self::world::World;
use crate::tasks::{OnCancel, OnError, TaskError, Tasks};

/// How often shares are looked at.
const LOOK: Duration = Duration::from_millis(10);

/// How many looks pass between two frames of the screen.
const LOOKS_PER_FRAME: u32 = 20;

/// A decision is on record so long after its time at the latest.
const SETTLED_AFTER: Duration = Duration::from_millis(200);

/// How the demo is run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long it takes; the parts scale with it.
    pub length: Duration,
    /// Whether to draw.
    pub quiet: bool,
    /// What arrivals are drawn from.
    pub seed: u64,
}

/// Runs the demo.
///
/// # Errors
/// If loopback sockets cannot be used, the nodes do not find each other, or standard output is
/// closed.
pub async fn run(options: Options) -> Result<Report, TaskError> {
    let mut tasks = Tasks::new(CancellationToken::new());
    let world = World::start(&mut tasks, options.seed).await?;
    let report = watch(&world, &mut tasks, options).await;
    tasks.stop().cancel();
    tasks.finish(Duration::from_secs(3)).await;
    report
}

/// Starts the load and watches it to the end.
async fn watch(world: &World, tasks: &mut Tasks, options: Options) -> Result<Report, TaskError> {
    let ends = script::ends(options.length);
    let start = Instant::now();
    for (region, node) in world.nodes.iter().enumerate() {
        let seed = options
            .seed
            .wrapping_mul(31)
            .wrapping_add(u64::try_from(region)?);
        let (node, ends, stop) = (Arc::clone(node), ends.clone(), tasks.stop().clone());
        tasks.spawn("load", (OnError::Report, OnCancel::Finish), async move {
            node.load(region, ends, seed, stop).await;
            Ok(())
        });
    }
    let limit = *world.policies.policies()[0]
        .split()
        .ok_or("the demo has a bucket")?
        .limit();
    let mut watcher = Watcher {
        world,
        record: Record::new(limit),
        shares: Shares::default(),
        screen: (!options.quiet).then(Screen::new),
        before: Default::default(),
        drawn: start,
    };
    let mut looks = interval(LOOK);
    let mut phase = None;
    for count in 1.. {
        looks.tick().await;
        let passed = start.elapsed();
        let Some(now) = ends.iter().position(|end| *end > passed) else {
            break;
        };
        if phase != Some(now) {
            phase = Some(now);
            world.cut(PHASES[now].cut);
            watcher.shares.begin(now, passed);
        }
        let looked = watcher.look(passed).await;
        if count % LOOKS_PER_FRAME == 0 {
            watcher.frame(now, (passed, options.length), &looked)?;
        }
    }
    sleep(SETTLED_AFTER).await;
    watcher.collect();
    Ok(watcher.report())
}

/// What is seen of the world while it runs.
struct Watcher<'a> {
    world: &'a World,
    record: Record,
    shares: Shares,
    screen: Option<Screen>,
    /// What had been offered and admitted when the last frame was drawn.
    before: [(u64, u64); REGIONS.len()],
    drawn: Instant,
}

impl Watcher<'_> {
    async fn look(&mut self, passed: Duration) -> Vec<Option<Loaded>> {
        let mut looked = Vec::with_capacity(REGIONS.len());
        for region in 0..REGIONS.len() {
            let loaded = self.world.look(region).await;
            if let Some(loaded) = &loaded {
                self.shares.note(region, self.share(region, loaded), passed);
            }
            looked.push(loaded);
        }
        looked
    }

    /// A region's share in tokens per second.
    fn share(&self, region: usize, loaded: &Loaded) -> u64 {
        self.pieces(region, loaded).map_or(0, |(share, _)| share)
    }

    /// Share in tokens per second and capacity in tokens.
    fn pieces(&self, region: usize, loaded: &Loaded) -> Option<(u64, u64)> {
        let policy = &self.world.policies.policies()[0];
        let limit = policy.split()?.limit();
        let region = region::units::RegionId(u16::try_from(region).ok()?);
        // The demo's limit is not small, so base shares do not depend on the client.
        let base = policy.base(region, region::units::Client(0))?;
        let pieces = base.pieces(loaded.memory);
        let share = loaded.bucket.share(&pieces);
        let per_second = region::units::mul_div(share.0, LIMIT, limit.total().0);
        Some((per_second, limit.tokens(loaded.bucket.capacity(&pieces)).0))
    }

    /// Takes in what was decided, and audits what is settled.
    fn collect(&mut self) {
        for node in &self.world.nodes {
            self.record.add(node.drain());
        }
        let settled = self.world.now().minus(SETTLED_AFTER / 2);
        self.record.audit(settled);
    }

    fn frame(
        &mut self,
        phase: usize,
        time: (Duration, Duration),
        looked: &[Option<Loaded>],
    ) -> Result<(), TaskError> {
        self.collect();
        let since = self.drawn.elapsed().as_secs_f64().max(0.001);
        self.drawn = Instant::now();
        let mut regions = [RegionView::default(); REGIONS.len()];
        for (region, view) in regions.iter_mut().enumerate() {
            let tally = self.record.regions[region];
            let (offered, admitted) = self.before[region];
            view.offered = per_second(tally.offered - offered, since);
            view.admitted = per_second(tally.admitted - admitted, since);
            self.before[region] = (tally.offered, tally.admitted);
            view.cut = PHASES[phase].cut == Some(region);
            if let Some(loaded) = &looked[region]
                && let Some((share, capacity)) = self.pieces(region, loaded)
            {
                let limit = self.world.policies.policies()[0]
                    .split()
                    .map(|split| *split.limit());
                (view.share, view.capacity) = (share, capacity);
                view.level = limit.map_or(0, |limit| limit.tokens(loaded.bucket.level).0);
            }
        }
        let view = View {
            phase,
            passed: time.0,
            whole: time.1,
            regions,
            overrun: self.record.overrun().0,
            utilisation: self.record.utilisation(),
        };
        if let Some(screen) = &mut self.screen {
            screen.draw(&view)?;
        }
        Ok(())
    }

    fn report(&self) -> Report {
        let mut timings = world::timings();
        for node in &self.world.nodes {
            node.add_timings(&mut timings);
        }
        let tallies = self.record.regions.iter().zip(self.shares.range);
        let regions = REGIONS
            .iter()
            .zip(tallies)
            .map(|((name, _), (tally, range))| {
                let (share_min, share_max) = range.unwrap_or_default();
                RegionReport {
                    name: (*name).to_owned(),
                    offered: tally.offered,
                    admitted: tally.admitted,
                    denied: tally.offered - tally.admitted,
                    share_min,
                    share_max,
                }
            });
        let phases = PHASES
            .iter()
            .zip(self.record.phases)
            .map(|(phase, tally)| PhaseReport {
                name: phase.name.to_owned(),
                offered: tally.offered,
                admitted: tally.admitted,
                utilisation: rounded(tally.utilisation(), 4),
                false_denials: tally.false_denials,
                cut: phase.cut.is_some(),
            });
        let bound = Bound::of(&self.world.policies.policies()[0]);
        let bound = bound.and_then(|bound| bound.total(&[Fault::Network]));
        let bound = bound.expect("the demo has one shared limit, and only links fail");
        Report {
            limit: LIMIT,
            burst: BURST,
            regions: regions.collect(),
            phases: phases.collect(),
            admitted: self.record.admitted().0,
            overrun: self.record.overrun().0,
            overrun_bound: bound.0,
            utilisation: rounded(self.record.utilisation(), 4),
            reaction_ms: self.shares.reaction_ms(),
            false_denials: self
                .record
                .phases
                .iter()
                .map(|tally| tally.false_denials)
                .sum(),
            check_p50_us: micros(timings.value_at_quantile(0.5)),
            check_p99_us: micros(timings.value_at_quantile(0.99)),
        }
    }
}

/// The shares that were seen, and how fast they followed demand.
#[derive(Debug, Default)]
struct Shares {
    range: [Option<(u64, u64)>; REGIONS.len()],
    steps: Vec<Step>,
}

/// A phase in which all demand is in one region, if it is one.
#[derive(Debug)]
struct Step {
    only: Option<usize>,
    begun: Duration,
    /// Each share of that region that was larger than all before, with its time.
    rises: Vec<(Duration, u64)>,
}

impl Shares {
    fn begin(&mut self, phase: usize, passed: Duration) {
        let offered = PHASES[phase].offered;
        let mut asking = (0..REGIONS.len()).filter(|region| offered[*region] > 0);
        let only = match (asking.next(), asking.next()) {
            (Some(only), None) => Some(only),
            _ => None,
        };
        self.steps.push(Step {
            only,
            begun: passed,
            rises: Vec::new(),
        });
    }

    fn note(&mut self, region: usize, share: u64, passed: Duration) {
        let (least, most) = self.range[region].unwrap_or((share, share));
        self.range[region] = Some((least.min(share), most.max(share)));
        if let Some(step) = self.steps.last_mut()
            && step.only == Some(region)
            && step.rises.last().is_none_or(|(_, most)| share > *most)
        {
            step.rises.push((passed, share));
        }
    }

    /// The longest time from the begin of such a phase to 95 % of the largest share in it.
    fn reaction_ms(&self) -> u64 {
        let reactions = self.steps.iter().filter_map(|step| {
            let (_, most) = step.rises.last()?;
            let reached = step
                .rises
                .iter()
                .find(|(_, share)| share * 100 >= most * 95)?;
            u64::try_from(reached.0.saturating_sub(step.begun).as_millis()).ok()
        });
        reactions.max().unwrap_or(0)
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "a rate that people read"
)]
fn per_second(count: u64, seconds: f64) -> u64 {
    (count as f64 / seconds).round() as u64
}

#[expect(clippy::cast_precision_loss, reason = "a time that people read")]
fn micros(nanos: u64) -> f64 {
    rounded(nanos as f64 / 1_000.0, 2)
}

fn rounded(value: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (value * scale).round() / scale
}
