//! What tiers hold, where compute and failures change it.
//!
//! By itself this world gives each node a tier of one size, and pages stay. Where memory changes,
//! each node has the eviction policy of its agent, which receives what an agent reports to it:
//! pages that come, are read, or are wanted by a request, and the capacity.

use std::collections::BTreeSet;

use forebay_policy::eviction::{EvictionKind, EvictionPolicy, Fill};
use forebay_policy::fetch_order::Urgency;
use forebay_policy::machine::Nanos;
use forebay_policy::stage::event::{Event, RequestId};

use super::map::Map;
use super::page::{Page, Waiter, page_range};
use super::{Cluster, Happening, name};
use crate::queue::Agenda;

/// The pages of all tiers, by the policies that order them.
pub(super) struct Rooms {
    policies: Vec<Box<dyn EvictionPolicy>>,
    /// What each node's tier may hold at the moment.
    limits: Vec<u64>,
    places: Map<Page, Place>,
    /// Pages of each request that nobody has read: most requests have none when they are released,
    /// and a policy that has to look for them looks at all pages.
    unread: Map<RequestId, u32>,
    pages: Map<u64, Page>,
    next_key: u64,
    pub evicted_bytes: u64,
}

/// Where a page is.
struct Place {
    node: usize,
    key: u64,
    /// The request for which it is kept until it is read.
    request: Option<RequestId>,
}

impl Rooms {
    /// Makes `nodes` empty tiers, each of which may hold `limit_bytes`.
    fn new(nodes: usize, limit_bytes: u64) -> Self {
        Rooms {
            policies: (0..nodes).map(|_| EvictionKind::default().build(limit_bytes)).collect(),
            limits: vec![limit_bytes; nodes],
            places: Map::default(),
            unread: Map::default(),
            pages: Map::default(),
            next_key: 0,
            evicted_bytes: 0,
        }
    }

    /// A page has come to a node, for some of these waiters.
    pub fn came(&mut self, node: usize, page: Page, bytes: u64, urgency: Urgency, waiting: &[Waiter]) {
        let key = self.next_key;
        self.next_key += 1;
        self.pages.insert(key, page);
        let fill = if urgency == Urgency::Demand { Fill::Demand } else { Fill::Ahead };
        let policy = &mut self.policies[node];
        policy.insert(key, bytes as u32, fill);
        let request = waiting.iter().find_map(|waiter| match waiter {
            Waiter::Request { id, .. } => Some(*id),
            Waiter::Slot(_) => None,
        });
        let request = request.filter(|id| policy.plan(key, *id));
        if let Some(id) = request {
            *self.unread.entry(id).or_default() += 1;
        }
        self.places.insert(page, Place { node, key, request });
    }

    /// A task reads a page.
    pub fn touch(&mut self, page: Page) {
        let Some(place) = self.places.get_mut(&page) else { return };
        self.policies[place.node].touch(place.key);
        if let Some(id) = place.request.take() {
            self.is_read(id);
        }
    }

    /// A page of a request was read, or is gone.
    fn is_read(&mut self, id: RequestId) {
        if let Some(count) = self.unread.get_mut(&id) {
            *count -= 1;
            if *count == 0 {
                self.unread.remove(&id);
            }
        }
    }

    /// Nothing has to be kept any more for a request.
    pub fn release(&mut self, node: usize, id: RequestId) {
        if self.unread.remove(&id).is_some() {
            self.policies[node].unplan(Some(&BTreeSet::from([id])));
        }
    }

    /// Pages that have to go from a node that holds more than it may.
    pub fn excess(&mut self, node: usize) -> Vec<Page> {
        let mut pages = Vec::new();
        loop {
            let excess = self.policies[node].bytes().saturating_sub(self.limits[node]);
            pages.extend(self.take(node, excess));
            let excess = self.policies[node].bytes().saturating_sub(self.limits[node]);
            // As agents do: planned pages go last, the latest first.
            if excess == 0 || self.policies[node].unplan_latest(excess) == 0 {
                return pages;
            }
        }
    }

    /// All that a node holds goes.
    pub fn lose(&mut self, node: usize) -> Vec<Page> {
        self.policies[node].unplan(None);
        self.take(node, u64::MAX)
    }

    fn take(&mut self, node: usize, bytes: u64) -> Vec<Page> {
        let mut victims = Vec::new();
        if bytes > 0 {
            self.policies[node].evict(bytes, &mut |_| true, &mut victims);
        }
        let mut pages = Vec::new();
        for victim in victims {
            self.evicted_bytes += u64::from(victim.bytes);
            pages.extend(self.pages.remove(&victim.key));
        }
        for page in &pages {
            if let Some(id) = self.places.remove(page).and_then(|place| place.request) {
                self.is_read(id);
            }
        }
        pages
    }
}

impl Cluster<'_> {
    /// From now on tiers change, and hold no more than they may: at first `bytes` each.
    pub fn limit_tiers(&mut self, bytes: u64, queue: &mut impl Agenda<Happening>) {
        let nodes = self.setup.nodes as usize;
        self.tier.rooms = Some(Rooms::new(nodes, bytes));
        (0..nodes).for_each(|node| self.report_capacity(Nanos(0), node, bytes, queue));
    }

    /// Reports to the machine what the tier of a node may hold.
    pub fn report_capacity(
        &mut self,
        now: Nanos,
        node: usize,
        bytes: u64,
        queue: &mut impl Agenda<Happening>,
    ) {
        self.notify(now, Event::Capacity { node: name(node), bytes }, queue);
    }

    /// The tier of a node may hold `bytes` from now on; any excess has to go.
    pub fn limit_tier(&mut self, now: Nanos, node: usize, bytes: u64) {
        let Some(rooms) = &mut self.tier.rooms else { return };
        if std::mem::replace(&mut rooms.limits[node], bytes) != bytes {
            rooms.policies[node].set_capacity(bytes);
            self.evict_excess(now, node);
        }
    }

    /// What a node holds beyond its limit goes.
    pub(super) fn evict_excess(&mut self, now: Nanos, node: usize) {
        let Some(rooms) = &mut self.tier.rooms else { return };
        for page in rooms.excess(node) {
            let (from, to) = page_range(self.setup, page);
            self.tier.activity.gone(node, now.0, to - from);
            self.tier.fetches.remove(&page);
        }
    }

    /// Bytes that tiers have evicted or lost.
    pub fn evicted_bytes(&self) -> u64 {
        self.tier.rooms.as_ref().map_or(0, |rooms| rooms.evicted_bytes)
    }
}
