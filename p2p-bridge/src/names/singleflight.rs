//! Singleflight for look-ups: one per name at a time, shared by all callers, and bounded in total.
//!
//! A look-up runs in the *foreground* until its first answer, and then in the *background*; a refresh is in the
//! background from the start. Background look-ups may use half of the slots, so that the others remain for waiting
//! callers. A look-up without an answer is cancelled when its last caller is gone. The DHT and the DNS have separate
//! slots, so that an outage of one does not block the other.

use super::Inner;
use super::cache::{CacheEntry, QUORUM};
use content::Name;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};

type AnswerSender = watch::Sender<Option<Arc<CacheEntry>>>;

/// The running look-ups.
pub(super) struct LookUps {
    state: Mutex<State>,
    max: usize,
    /// Maximum look-ups in the background.
    background_max: usize,
}

#[derive(Default)]
struct State {
    running: HashMap<Name, RunningLookUp>,
    keys: Slots,
    domains: Slots,
    /// The ID of the last look-up, which distinguishes it from a later one of the same name.
    last: u64,
}

impl State {
    fn remove(&mut self, name: &Name, id: u64) {
        if self.running.get(name).is_none_or(|look_up| look_up.id != id) {
            return;
        }
        let Some(look_up) = self.running.remove(name) else { return };
        let slots = self.slots(name);
        slots.all -= 1;
        slots.background -= usize::from(look_up.background);
    }

    fn slots(&mut self, name: &Name) -> &mut Slots {
        match name {
            Name::Key(_) => &mut self.keys,
            Name::Domain(_) => &mut self.domains,
        }
    }
}

/// The used slots.
#[derive(Default)]
struct Slots {
    all: usize,
    background: usize,
}

struct RunningLookUp {
    id: u64,
    answers: AnswerSender,
    background: bool,
    begun: Instant,
}

/// A caller's handle of a look-up.
pub(super) struct LookUp {
    answers: watch::Receiver<Option<Arc<CacheEntry>>>,
    begun: Instant,
    is_shared: bool,
}

impl LookUp {
    /// How long the look-up has been running.
    pub fn age(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Whether another caller has started it.
    pub fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// The first answer or error that is `good`; `None` if the look-up ended without one.
    pub async fn answer(mut self, good: impl Fn(&CacheEntry) -> bool) -> Option<Arc<CacheEntry>> {
        let is_good = |entry: &Option<Arc<CacheEntry>>| entry.as_deref().is_some_and(&good);
        self.answers.wait_for(is_good).await.ok().and_then(|entry| entry.clone())
    }

    /// Waits until the look-up has a newer answer than `known`, or has confirmed that there is none, or has ended.
    pub async fn settled(self, known: &CacheEntry) {
        self.answer(|entry| entry.confirmations >= QUORUM || entry.outcome != known.outcome).await;
    }

    /// The last answer of the look-up after its end; `None` if it had none.
    pub async fn end(mut self) -> Option<Arc<CacheEntry>> {
        while self.answers.changed().await.is_ok() {}
        self.answers.borrow().clone()
    }
}

impl LookUps {
    pub fn new(max: usize) -> Self {
        Self { state: Mutex::default(), max, background_max: max.div_ceil(2) }
    }

    /// Joins the look-up of a name or starts it; `None` if the maximum is reached.
    pub fn join(&self, inner: &Arc<Inner>, name: &Name) -> Option<LookUp> {
        self.join_or_start(inner, name, false)
    }

    /// Joins the look-up of a name or starts one in the background; `None` if the maximum is reached.
    pub fn refresh(&self, inner: &Arc<Inner>, name: &Name) -> Option<LookUp> {
        self.join_or_start(inner, name, true)
    }

    fn join_or_start(&self, inner: &Arc<Inner>, name: &Name, background: bool) -> Option<LookUp> {
        let (id, answers, look_up) = match self.join_or_reserve(name, background)? {
            (look_up, None) => return Some(look_up),
            (look_up, Some((id, answers))) => (id, answers, look_up),
        };
        // The lock must be free here: a runtime that shuts down drops the task at once, which takes the lock.
        let guard = LookUpGuard { inner: Arc::clone(inner), name: name.clone(), id };
        tokio::spawn(async move { guard.run(answers, background).await });
        Some(look_up)
    }

    /// Joins a look-up or reserves a slot for one that the caller must start; `None` if the maximum is reached.
    fn join_or_reserve(&self, name: &Name, background: bool) -> Option<(LookUp, Option<(u64, AnswerSender)>)> {
        let mut state = self.state();
        if let Some(look_up) = state.running.get(name) {
            let answers = look_up.answers.subscribe();
            return Some((LookUp { answers, begun: look_up.begun, is_shared: true }, None));
        }
        let slots = state.slots(name);
        if slots.all >= self.max || (background && slots.background >= self.background_max) {
            return None;
        }
        slots.all += 1;
        slots.background += usize::from(background);
        let (answers, receiver) = watch::channel(None);
        state.last += 1;
        let id = state.last;
        let begun = Instant::now();
        state.running.insert(name.clone(), RunningLookUp { id, answers: answers.clone(), background, begun });
        Some((LookUp { answers: receiver, begun, is_shared: false }, Some((id, answers))))
    }

    /// Moves a look-up with an answer to the background. `false`: the maximum is reached, and the look-up must end.
    fn move_to_background(&self, name: &Name) -> bool {
        let mut state = self.state();
        if state.slots(name).background >= self.background_max {
            return false;
        }
        match state.running.get_mut(name) {
            Some(look_up) if !look_up.background => look_up.background = true,
            _ => return true,
        }
        state.slots(name).background += 1;
        true
    }

    /// Removes a look-up unless it has callers. Returns whether it was removed, so that it cannot be joined any more.
    fn remove_if_unused(&self, name: &Name, id: u64) -> bool {
        let mut state = self.state();
        if state.running.get(name).is_some_and(|look_up| look_up.id == id && look_up.answers.receiver_count() > 0) {
            return false;
        }
        state.remove(name, id);
        true
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub fn running_count(&self) -> usize {
        self.state().running.len()
    }
}

/// A guard that removes the look-up when it ends for any reason.
struct LookUpGuard {
    inner: Arc<Inner>,
    name: Name,
    id: u64,
}

impl LookUpGuard {
    /// Runs the look-up while it is needed.
    async fn run(&self, answers: AnswerSender, background: bool) {
        let answered = Notify::new();
        // A watch channel keeps its last value after the sender is gone, so callers still receive the answer.
        let answer = |entry| {
            answers.send_replace(Some(entry));
            answered.notify_one();
        };
        tokio::select! {
            // Answers have priority.
            biased;
            () = self.inner.run_look_up(&self.name, answer) => {}
            () = self.until_unneeded(&answers, &answered, background) => {}
        }
    }

    /// Returns when the look-up must end.
    async fn until_unneeded(&self, answers: &AnswerSender, answered: &Notify, background: bool) {
        let look_ups = &self.inner.look_ups;
        while !background && answers.borrow().is_none() {
            tokio::select! {
                () = answered.notified() => {}
                () = answers.closed() => if look_ups.remove_if_unused(&self.name, self.id) { return },
            }
        }
        if background || look_ups.move_to_background(&self.name) {
            std::future::pending::<()>().await;
        }
        // The look-up ends before enough peers have answered: back off, so that the next request does not restart it at
        // once.
        self.inner.back_off(&self.name);
    }
}

impl Drop for LookUpGuard {
    fn drop(&mut self) {
        self.inner.look_ups.state().remove(&self.name, self.id);
    }
}
