//! [`Link`]: the reading of ranges for every kind of store: in turn, within the rate, hedged, and exactly.
//!
//! The parts have this order, from the outside in, each with its reason:
//!
//! 1. *Rest* ([`Rest`]): the pause that the store asked for. Outside of the turn, so that it holds nothing.
//! 2. *Turn*: a fixed number of reads at once. Demand and background have places of their own, so that a demand
//!    read never waits behind background ones. Outside of the limit, so that a read that waits for its turn does
//!    not hold rate.
//! 3. *Rate* ([`RateLimit`](crate::RateLimit)): outside of the hedge, whose clock must not run while we ourselves
//!    hold the request back.
//! 4. *Hedge* ([`Hedge`]): sees nothing but the time from sending to the first byte.
//! 5. *First byte*: a time-out over the sending of one request, including all that the store does for it (renewing
//!    a token, following a redirect).
//! 6. *Body* ([`Parts`]): exactly the bytes asked for, with a time-out between its parts and a least pace (`Pace`).
//!
//! A *stream* is a read whose parts are given on as they come. It keeps its place to its end. It takes the rate
//! piece by piece as it is read, because it can be held back: a server sends no more than the reader takes.
//!
//! A read that is dropped gives everything back at once.

mod hedge;
pub(crate) mod pace;
mod parts;
mod rest;
#[cfg(test)]
mod tests;

use crate::counters::{Meter, StoreCounters};
use crate::limit::RateLimits;
use crate::settings::StoreSettings;
use crate::store::Urgency;
use bytes::{Bytes, BytesMut};
use futures::stream::{BoxStream, StreamExt};
use headstart_block::{ByteRange, Error, ErrorKind, Result};
use hedge::Hedge;
use parts::{Parts, Streamed};
use rest::Rest;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep, timeout};

/// An answer whose head has come and promises exactly the range; its body follows.
pub(crate) struct Answer {
    /// The source of the answer, for messages: a URL without credentials.
    pub(crate) thing: String,
    /// The bytes, in parts of any size.
    pub(crate) body: BoxStream<'static, Result<Bytes>>,
}

/// The way to one store.
pub(crate) struct Link {
    demand: Semaphore,
    background: Semaphore,
    limit: Option<RateLimits>,
    rest: Rest,
    hedge: Option<Hedge>,
    first_byte: Duration,
    stall: Duration,
    meter: Arc<Meter>,
}

impl Link {
    pub(crate) fn new(settings: &StoreSettings) -> Self {
        let places = |number: usize| Semaphore::new(number.clamp(1, Semaphore::MAX_PERMITS));
        Self {
            demand: places(settings.demand_in_flight),
            background: places(settings.background_in_flight),
            limit: RateLimits::of([&settings.limit_rate, &settings.shared_rate]),
            rest: Rest::new(settings.retry.deadline),
            hedge: settings.hedge.map(Hedge::new),
            first_byte: settings.first_byte_timeout,
            stall: settings.stall_timeout,
            meter: Arc::default(),
        }
    }

    /// The same link without second requests, for stores for which they are of no use.
    pub(crate) fn without_hedge(mut self) -> Self {
        self.hedge = None;
        self
    }

    pub(crate) fn counters(&self) -> StoreCounters {
        self.meter.read()
    }

    /// The counters, in which requests outside of [`Link::read`] are counted, too.
    pub(crate) fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }

    /// Reads `range` by the answer that `send` gets: called once, or twice if the first is slow.
    ///
    /// # Errors
    /// Errors of `send`; [`ErrorKind::Unavailable`] where a time runs out or the body is not exactly the range.
    pub(crate) async fn read<F, Fut>(&self, range: ByteRange, urgency: Urgency, send: F) -> Result<Bytes>
    where
        F: Fn() -> Fut + Send + Sync,
        Fut: Future<Output = Result<Answer>> + Send,
    {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let read = async {
            self.rest.over().await;
            let _place = self.place(urgency).await?;
            if let Some(limit) = &self.limit {
                limit.take(range.len(), urgency).await;
            }
            let (answer, _second_place) = self.first_answer(range, urgency, &send).await?;
            self.collect(answer, range).await
        };
        let result = read.await;
        if let Err(error) = &result {
            self.failed(error);
        }
        result
    }

    /// As [`Link::read`], but gives the parts as they come, and an error behind the last if it breaks. It holds
    /// its place until it is dropped, and takes from the rate as it goes on.
    ///
    /// # Errors
    /// As [`Link::read`], if the answer does not begin.
    pub(crate) async fn stream<'l, F, Fut>(
        &'l self,
        range: ByteRange,
        urgency: Urgency,
        send: F,
    ) -> Result<BoxStream<'l, Result<Bytes>>>
    where
        F: Fn() -> Fut + Send + Sync,
        Fut: Future<Output = Result<Answer>> + Send,
    {
        if range.is_empty() {
            return Ok(futures::stream::empty().boxed());
        }
        let begin = async {
            self.rest.over().await;
            let place = self.place(urgency).await?;
            let paid = Streamed::first_payment(range);
            if let Some(limit) = &self.limit {
                limit.take(paid, urgency).await;
            }
            let (answer, second_place) = self.first_answer(range, urgency, &send).await?;
            let parts = Parts::of(answer, range, self);
            Ok(Streamed { link: self, parts, urgency, paid, _places: (place, second_place) })
        };
        let begun = begin.await.inspect_err(|error| self.failed(error))?;
        Ok(begun.run())
    }

    fn failed(&self, error: &Error) {
        self.rest.note(error);
        Meter::add(&self.meter.errors, 1);
    }

    async fn place(&self, urgency: Urgency) -> Result<SemaphorePermit<'_>> {
        let places = match urgency {
            Urgency::Demand => &self.demand,
            Urgency::Background => &self.background,
        };
        places
            .acquire()
            .await
            .map_err(|e| Error::new(ErrorKind::Unavailable, "the store is closed").caused_by(e))
    }

    /// The first of one or two requests that is answered, with the place that the second takes.
    async fn first_answer<F, Fut>(
        &self,
        range: ByteRange,
        urgency: Urgency,
        send: &F,
    ) -> Result<(Answer, Option<SemaphorePermit<'_>>)>
    where
        F: Fn() -> Fut + Send + Sync,
        Fut: Future<Output = Result<Answer>> + Send,
    {
        let sent = Instant::now();
        let mut first = std::pin::pin!(self.once(send));
        let Some(hedge) = &self.hedge else { return Ok((first.await?, None)) };
        let delay = (urgency == Urgency::Demand).then(|| hedge.delay()).flatten();
        let Some(delay) = delay else {
            let answer = first.await?;
            hedge.observe(sent.elapsed());
            return Ok((answer, None));
        };
        tokio::select! {
            answer = &mut first => {
                let answer = answer?;
                hedge.observe(sent.elapsed());
                return Ok((answer, None));
            }
            () = sleep(delay) => {}
        }
        // A second request must not take a place that other demand reads wait for.
        let place = self.demand.try_acquire().ok();
        if place.is_none() || !self.afford(hedge, range) {
            let answer = first.await?;
            hedge.observe(sent.elapsed());
            return Ok((answer, None));
        }
        Meter::add(&self.meter.hedges, 1);
        let second = std::pin::pin!(self.once(send));
        let answer = match futures::future::select(first, second).await {
            futures::future::Either::Left((Ok(answer), _)) => answer,
            futures::future::Either::Right((Ok(answer), _)) => {
                Meter::add(&self.meter.hedges_won, 1);
                answer
            }
            // One failed: the other may still come.
            futures::future::Either::Left((Err(_), second)) => {
                let answer = second.await?;
                Meter::add(&self.meter.hedges_won, 1);
                answer
            }
            futures::future::Either::Right((Err(_), first)) => first.await?,
        };
        hedge.observe(sent.elapsed());
        Ok((answer, place))
    }

    /// Pays for a second request, or takes nothing.
    fn afford(&self, hedge: &Hedge, range: ByteRange) -> bool {
        if !hedge.spend() {
            return false;
        }
        let within = self.limit.as_ref().is_none_or(|limit| limit.try_take(range.len()));
        if !within {
            hedge.refund();
        }
        within
    }

    async fn once<F, Fut>(&self, send: &F) -> Result<Answer>
    where
        F: Fn() -> Fut,
        Fut: Future<Output = Result<Answer>>,
    {
        Meter::add(&self.meter.requests, 1);
        let _waiting = self.meter.waits();
        timeout(self.first_byte, send()).await.unwrap_or_else(|_| {
            let seconds = self.first_byte.as_secs_f64();
            Err(Error::new(ErrorKind::Unavailable, format!("did not begin to answer within {seconds} s")))
        })
    }

    /// Exactly the bytes of the range, or an error.
    async fn collect(&self, answer: Answer, range: ByteRange) -> Result<Bytes> {
        let wanted = usize::try_from(range.len()).map_err(|_| Error::invalid("a range past the memory"))?;
        let mut body = Parts::of(answer, range, self);
        let mut whole = Bytes::new();
        let mut parts = BytesMut::new();
        while let Some(part) = body.next(self).await? {
            if whole.is_empty() && parts.is_empty() {
                // Most often the only part: not copied.
                whole = part;
                continue;
            }
            if !whole.is_empty() {
                parts.reserve(wanted);
                parts.extend_from_slice(&std::mem::take(&mut whole));
            }
            parts.extend_from_slice(&part);
        }
        Ok(if whole.is_empty() { parts.freeze() } else { whole })
    }
}

/// The same stream, whose error names its source.
pub(crate) fn about_errors(
    parts: BoxStream<'_, Result<Bytes>>,
    thing: String,
) -> BoxStream<'_, Result<Bytes>> {
    parts.map(move |part| part.map_err(|e| e.about(&thing))).boxed()
}
