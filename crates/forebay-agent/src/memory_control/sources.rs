//! The places that the controller looks at, and what reports that memory runs short there.

use super::calls::Calls;
use super::watched::Watched;
use crate::memory::alarm::Alarm;
use crate::memory::memory_place::{Place, places};
use crate::memory::{self, Asked};

/// See the module.
pub struct Sources {
    /// The node, then control groups.
    pub watched: Vec<Watched>,
    /// Stalls and reached limits of the places. Thresholds are with the places.
    of_places: Vec<Alarm>,
    service: Option<Alarm>,
    /// The service manager does not want stalls to be watched.
    is_off: bool,
}

impl Sources {
    /// All places that exist now, including the control groups named `named`.
    pub fn new(named: &[String], calls: &Calls) -> Self {
        let asked = memory::asked().unwrap_or_else(|e| {
            tracing::warn!("the reports of the service manager about memory are ignored: {e}");
            Asked::Nothing
        });
        let is_off = matches!(asked, Asked::Off);
        let service = match asked {
            Asked::Watch(source) => Some(Alarm::of_service(source)),
            Asked::Off | Asked::Nothing => None,
        };
        let mut sources = Sources { watched: Vec::new(), of_places: Vec::new(), service, is_off };
        sources.service.iter().for_each(|alarm| listen(calls, alarm));
        sources.take(places(named), calls);
        sources
    }

    fn take(&mut self, places: Vec<Place>, calls: &Calls) {
        self.watched = places.into_iter().map(Watched::new).collect();
        let places = || self.watched.iter().map(|watched| &watched.place).filter(|_| !self.is_off);
        self.of_places = places().filter_map(Alarm::of_stalls).collect();
        self.of_places.extend(places().filter_map(Alarm::of_limits));
        self.of_places.iter().for_each(|alarm| listen(calls, alarm));
    }

    /// Looks for the places again: the agent may have been moved to another group, its own may be
    /// gone, and a named one may have come. Returns whether the places are others.
    pub fn search(&mut self, named: &[String], calls: &Calls) -> bool {
        let places = places(named);
        let are_others = are_others(&places, &self.watched);
        if are_others {
            self.take(places, calls);
        }
        are_others
    }

    /// Makes ready for the next reports.
    pub fn renew(&mut self) {
        self.of_places.retain_mut(Alarm::renew);
        if self.service.as_mut().is_some_and(|alarm| !alarm.renew()) {
            self.service = None;
        }
    }

    /// Everything that wakes the controller.
    pub fn alarms(&self) -> impl Iterator<Item = &Alarm> {
        let thresholds = self.watched.iter().filter_map(Watched::alarm);
        self.of_places.iter().chain(&self.service).chain(thresholds)
    }

    /// Names of the places.
    pub fn names(&self) -> Vec<String> {
        self.watched.iter().map(|watched| watched.place.name.clone()).collect()
    }

    /// Names of the groups that the operator has named and that are not there.
    pub fn awaited(&self) -> impl Iterator<Item = &String> {
        self.watched.iter().filter(|watched| watched.is_awaited()).map(|watched| &watched.place.name)
    }
}

fn listen(calls: &Calls, alarm: &Alarm) {
    if let Err(e) = calls.add(alarm) {
        tracing::warn!("nothing waits for {}: {e}", alarm.name);
    }
}

/// Whether `places` are others than those watched, or can be opened only now.
fn are_others(places: &[Place], watched: &[Watched]) -> bool {
    let differ = |(new, old): (&Place, &Watched)| {
        new.name != old.place.name || old.is_gone() || old.place.is_missing() && !new.is_missing()
    };
    places.len() != watched.len() || places.iter().zip(watched).any(differ)
}
