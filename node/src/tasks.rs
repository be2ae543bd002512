//! Tasks with names and an owner: what a task's end means, and how it ends with the node.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

/// What it means when a task fails, panics or ends before the node stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnError {
    /// The node cannot do without it: drain and stop.
    StopNode,
    /// The node goes on, and the log says so.
    Report,
}

/// What happens to a task when the node stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnCancel {
    /// It watches the node's token and ends by itself; it is waited for within the grace.
    Finish,
    /// It has nothing to finish and is aborted.
    Abort,
}

/// Why a task failed.
pub type TaskError = Box<dyn std::error::Error + Send + Sync>;

/// How a task ended.
#[derive(Debug)]
#[non_exhaustive]
pub enum End {
    /// It returned.
    Done,
    /// It returned an error.
    Failed(TaskError),
    /// It panicked.
    Panicked,
    /// It was aborted.
    Aborted,
}

/// A task that ended although the node cannot do without it.
#[derive(Debug)]
pub struct Dead {
    /// The task.
    pub name: &'static str,
    /// How it ended.
    pub end: End,
}

/// The node's tasks. Dropping it aborts them all.
#[derive(Debug)]
pub struct Tasks {
    set: JoinSet<Result<(), TaskError>>,
    terms: HashMap<Id, Terms>,
    stop: CancellationToken,
}

#[derive(Clone, Copy, Debug)]
struct Terms {
    name: &'static str,
    on_error: OnError,
}

impl Tasks {
    /// No tasks yet. `stop` is what tells them that the node stops.
    #[must_use]
    pub fn new(stop: CancellationToken) -> Self {
        Self {
            set: JoinSet::new(),
            terms: HashMap::new(),
            stop,
        }
    }

    /// The token that tells tasks that the node stops.
    #[must_use]
    pub const fn stop(&self) -> &CancellationToken {
        &self.stop
    }

    /// Starts a task.
    pub fn spawn<F>(&mut self, name: &'static str, policy: (OnError, OnCancel), task: F)
    where
        F: Future<Output = Result<(), TaskError>> + Send + 'static,
    {
        let (on_error, on_cancel) = policy;
        let stop = self.stop.clone();
        let handle = match on_cancel {
            OnCancel::Finish => self.set.spawn(task),
            OnCancel::Abort => self.set.spawn(async move {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => Ok(()),
                    result = task => result,
                }
            }),
        };
        self.terms.insert(handle.id(), Terms { name, on_error });
    }

    /// Waits until a task has ended that the node cannot do without.
    ///
    /// Ends of other tasks are logged on the way. Never returns while all is well; cancel-safe.
    pub async fn watch(&mut self) -> Dead {
        loop {
            let Some(joined) = self.set.join_next_with_id().await else {
                std::future::pending::<()>().await;
                continue;
            };
            let (terms, end) = self.ended(joined);
            match terms.on_error {
                OnError::StopNode => {
                    return Dead {
                        name: terms.name,
                        end,
                    };
                }
                OnError::Report => report(terms.name, &end),
            }
        }
    }

    /// Tells all tasks to stop, waits for them at most `grace`, and aborts the rest. Returns the
    /// names of those that had to be aborted.
    pub async fn finish(mut self, grace: Duration) -> Vec<&'static str> {
        self.stop.cancel();
        let all = async {
            while let Some(joined) = self.set.join_next_with_id().await {
                let (terms, end) = self.ended(joined);
                if !matches!(end, End::Done) {
                    report(terms.name, &end);
                }
            }
        };
        if tokio::time::timeout(grace, all).await.is_ok() {
            return Vec::new();
        }
        let late = self.terms.values().map(|terms| terms.name).collect();
        self.set.shutdown().await;
        late
    }

    fn ended(&mut self, joined: Result<(Id, Result<(), TaskError>), JoinError>) -> (Terms, End) {
        let (id, end) = match joined {
            Ok((id, Ok(()))) => (id, End::Done),
            Ok((id, Err(error))) => (id, End::Failed(error)),
            Err(error) if error.is_panic() => (error.id(), End::Panicked),
            Err(error) => (error.id(), End::Aborted),
        };
        let terms = self.terms.remove(&id);
        (terms.expect("every task is entered when it starts"), end)
    }
}

fn report(task: &'static str, end: &End) {
    tracing::error!(task, %end, "task ended");
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => write!(f, "ended early"),
            Self::Failed(error) => write!(f, "failed: {error}"),
            Self::Panicked => write!(f, "panicked"),
            Self::Aborted => write!(f, "aborted"),
        }
    }
}

impl fmt::Display for Dead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task {} {}", self.name, self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ESSENTIAL: (OnError, OnCancel) = (OnError::StopNode, OnCancel::Finish);

    #[tokio::test]
    async fn essential_task_stops_the_node_when_it_panics() {
        let mut tasks = Tasks::new(CancellationToken::new());
        tasks.spawn("extra", (OnError::Report, OnCancel::Abort), async {
            Err("not needed".into())
        });
        tasks.spawn("heart", ESSENTIAL, async { panic!("on purpose") });
        let dead = tasks.watch().await;
        assert_eq!(dead.to_string(), "task heart panicked");
    }

    #[tokio::test(start_paused = true)]
    async fn finish_waits_for_the_grace_and_names_the_late() {
        let stop = CancellationToken::new();
        let mut tasks = Tasks::new(stop.clone());
        let watched = stop.clone();
        tasks.spawn("prompt", ESSENTIAL, async move {
            watched.cancelled().await;
            Ok(())
        });
        tasks.spawn("deaf", ESSENTIAL, std::future::pending());
        tasks.spawn(
            "idle",
            (OnError::StopNode, OnCancel::Abort),
            std::future::pending(),
        );
        let late = tasks.finish(Duration::from_secs(5)).await;
        assert_eq!(late, ["deaf"]);
        assert!(stop.is_cancelled());
    }
}
