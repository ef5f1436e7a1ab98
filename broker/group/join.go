package group

import (
	"bytes"
	"cmp"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/tabletopic/tabletopic/internal/invariant"
	"github.com/tabletopic/tabletopic/internal/shard"
)

// A Client is who sent a request.
type Client struct {
	ID        string // as it names itself
	Host      string
	Principal string
	// Sees tells whether it may know of a topic, which counts where it names none; of all if nil.
	Sees func(topic string) bool
	// Rights is another number whenever Sees may tell something else.
	Rights uint64
}

// answer is a step that only answers t.
func answer(t shard.Ticket, resp any) shard.Step {
	return shard.Step{Answers: []shard.Answer{{To: t, Value: resp}}}
}

// Join handles JoinGroup. newID becomes the id of a member that has none yet.
func (s *State) Join(now time.Time, t shard.Ticket, req *kmsg.JoinGroupRequest, client Client, newID string, topics *Topics) shard.Step {
	resp := req.ResponseKind().(*kmsg.JoinGroupResponse)
	resp.MemberID = req.MemberID
	refuse := func(err *kerr.Error) shard.Step {
		resp.ErrorCode, resp.Generation = err.Code, -1
		return answer(t, resp)
	}
	if err := s.checkJoin(req); err != nil {
		return refuse(err)
	}
	known := s.groups[req.Group]
	if free := s.free(known); !s.takes(&free, known.joinGrowth(req, client)) {
		return refuse(kerr.GroupMaxSizeReached)
	}
	g := s.group(req.Group)
	s.touch(g)
	if g.consumer != nil && g.occupied() {
		return s.joinConsumer(g, now, t, req, client, newID, topics)
	}
	g.consumer = nil // it has no members; the next generation is a record of the classic protocol
	instance := deref(req.InstanceID)
	var step shard.Step
	id := req.MemberID
	switch {
	case id == "" && instance != "":
		id = newID
		if old, taken := g.static[instance]; taken {
			if !s.hasRoom(g, g.members[old], req, client) {
				return refuse(kerr.GroupMaxSizeReached)
			}
			return s.replaceStatic(g, g.members[old], id, now, t, req, resp, client)
		}
	case id == "" && req.Version >= 4: // KIP-394: a member first learns its id
		resp.MemberID = newID
		return refuse(s.invite(g, newID, now.Add(millis(req.SessionTimeoutMillis))))
	case id == "":
		id = newID
	case instance != "":
		if current, known := g.static[instance]; !known {
			return refuse(kerr.UnknownMemberID)
		} else if current != id {
			return refuse(kerr.FencedInstanceID)
		}
	}
	resp.MemberID = id
	m := g.members[id]
	_, waiting := g.invited[id]
	if m == nil && req.MemberID != "" && !waiting {
		return refuse(kerr.UnknownMemberID)
	}
	if m == nil && len(g.members) >= s.cfg.MaxSize || !s.hasRoom(g, m, req, client) {
		return refuse(kerr.GroupMaxSizeReached)
	}
	if m != nil && g.phase != preparing && !g.changed(m, req) && (g.phase == completing || m.id != g.leader && g.leader != "") {
		g.fillJoin(m, resp) // a repeat whose answer was lost
		m.expires = now.Add(m.session)
		return answer(t, resp)
	}
	s.uninvite(g, id)
	if m == nil {
		g.joined++
		m = &member{id: id, instance: instance, order: g.joined}
		g.members[id] = m
		if instance != "" {
			g.static[instance] = id
		}
	} else {
		g.says.remove(m)
	}
	m.update(req, client)
	g.says.add(m)
	m.expires = now.Add(m.session)
	if m.join != 0 { // the same member asked again, on another connection
		m.joinResp.ErrorCode = kerr.UnknownMemberID.Code
		step.Answers = append(step.Answers, shard.Answer{To: m.join, Value: m.joinResp})
	}
	m.join, m.joinResp = t, resp
	g.protocolType = req.ProtocolType
	if g.phase != preparing {
		s.rebalance(g, now, &step)
	}
	s.tryCompleteJoin(g, now, &step)
	return step
}

// invite waits for a member to join with its id, which it learns by the error. Of those that never do there are
// as many as there may be members, at most.
func (s *State) invite(g *group, id string, until time.Time) *kerr.Error {
	if (len(g.invited) >= s.cfg.MaxSize || g.invitedBytes+len(id) > s.cfg.MaxBytes) && !invariant.Off("group-invited-bounded") {
		return kerr.GroupMaxSizeReached
	}
	g.invited[id] = until
	g.invitedBytes += len(id)
	s.wakeBy(g, until)
	return kerr.MemberIDRequired
}

// uninvite waits for a member no more, if it was.
func (s *State) uninvite(g *group, id string) {
	if _, invited := g.invited[id]; invited {
		delete(g.invited, id)
		g.invitedBytes -= len(id)
		s.touch(g)
	}
}

// hasRoom tells whether a member, nil for a new one, may say of itself what it says, beside the others.
func (s *State) hasRoom(g *group, m *member, req *kmsg.JoinGroupRequest, client Client) bool {
	bytes := g.says.said + saidBytes(client.ID, req.InstanceID, req.Protocols)
	if m != nil {
		bytes -= m.said()
	}
	return bytes <= s.cfg.MaxBytes || invariant.Off("group-metadata-bounded")
}

// saidBytes counts the name twice of which the coordinator makes the member id.
func saidBytes(client string, instance *string, protocols []kmsg.JoinGroupRequestProtocol) int {
	return len(client) + len(deref(instance)) + len(cmp.Or(deref(instance), client)) + saidProtocols(protocols)
}

// saidProtocols counts protocols, each with what it takes in memory besides.
func saidProtocols(protocols []kmsg.JoinGroupRequestProtocol) int {
	const each = 48
	n := each * len(protocols)
	for _, p := range protocols {
		n += len(p.Name) + len(p.Metadata)
	}
	return n
}

func (s *State) checkJoin(req *kmsg.JoinGroupRequest) *kerr.Error {
	session := millis(req.SessionTimeoutMillis)
	if session < s.cfg.MinSession || session > s.cfg.MaxSession {
		return kerr.InvalidSessionTimeout
	}
	if req.ProtocolType == "" || len(req.Protocols) == 0 {
		return kerr.InconsistentGroupProtocol
	}
	g := s.groups[req.Group]
	if g != nil && g.share != nil {
		return kerr.InconsistentGroupProtocol
	}
	if g != nil && g.consumer != nil && g.occupied() {
		return nil // joinConsumer looks
	}
	if g == nil || len(g.members) == 0 {
		if req.MemberID != "" && (g == nil || g.invited[req.MemberID].IsZero()) {
			return kerr.UnknownMemberID
		}
		return nil
	}
	if g.protocolType != req.ProtocolType || !g.supports(req) {
		return kerr.InconsistentGroupProtocol
	}
	return nil
}

// supports tells whether some protocol of req is one that every other member has.
func (g *group) supports(req *kmsg.JoinGroupRequest) bool {
	others, own := len(g.members), map[string]bool{}
	if m := g.asks(req); m != nil {
		others, own = others-1, protocolNames(m.protocols)
	}
	return slices.ContainsFunc(req.Protocols, func(p kmsg.JoinGroupRequestProtocol) bool {
		have := g.says.protocols[p.Name]
		if own[p.Name] {
			have--
		}
		return have == others
	})
}

// asks returns the member that joins again, nil if it is a new one.
func (g *group) asks(req *kmsg.JoinGroupRequest) *member {
	return cmp.Or(g.members[req.MemberID], g.members[g.static[deref(req.InstanceID)]])
}

// protocolNames are the names of protocols, of which a client may name one twice.
func protocolNames(protocols []kmsg.JoinGroupRequestProtocol) map[string]bool {
	names := make(map[string]bool, len(protocols))
	for _, p := range protocols {
		names[p.Name] = true
	}
	return names
}

func (g *group) changed(m *member, req *kmsg.JoinGroupRequest) bool {
	return !slices.EqualFunc(m.protocols, req.Protocols, func(a, b kmsg.JoinGroupRequestProtocol) bool {
		return a.Name == b.Name && bytes.Equal(a.Metadata, b.Metadata)
	})
}

func (m *member) update(req *kmsg.JoinGroupRequest, client Client) {
	m.clientID, m.clientHost = client.ID, client.Host
	m.session, m.rebalance = millis(req.SessionTimeoutMillis), millis(req.RebalanceTimeoutMillis)
	if req.Version == 0 {
		m.rebalance = m.session
	}
	m.protocols = m.protocols[:0:0]
	for _, p := range req.Protocols { // the request's memory is not ours
		m.protocols = append(m.protocols, kmsg.JoinGroupRequestProtocol{Name: p.Name, Metadata: slices.Clone(p.Metadata)})
	}
}

// replaceStatic gives the place of a static member to its new process (KIP-345). If
// nothing else changed in a stable group, the assignment stays and nobody rebalances.
func (s *State) replaceStatic(g *group, old *member, id string, now time.Time, t shard.Ticket, req *kmsg.JoinGroupRequest, resp *kmsg.JoinGroupResponse, client Client) shard.Step {
	var step shard.Step
	s.fence(old, &step)
	same := !g.changed(old, req)
	m := &member{id: id, instance: old.instance, order: old.order, assignment: old.assignment}
	m.update(req, client)
	m.expires = now.Add(m.session)
	delete(g.members, old.id)
	g.says.remove(old)
	g.members[id] = m
	g.says.add(m)
	g.static[m.instance] = id
	leads := g.leader == old.id
	if leads {
		g.leader = id
	}
	resp.MemberID = id
	if g.phase == stable && same {
		g.fillJoin(m, resp)
		if leads && req.Version >= 9 {
			resp.SkipAssignment = true
		} else if leads {
			resp.LeaderID, resp.Members = "", nil // an older client would assign again
		}
		step.Records = append(step.Records, g.record(now, func(m *member) []byte { return m.assignment }))
		step.Answers = append(step.Answers, shard.Answer{To: t, Value: resp})
		s.wakeBy(g, m.expires)
		return step
	}
	m.join, m.joinResp = t, resp
	if g.phase != preparing {
		s.rebalance(g, now, &step)
	}
	s.tryCompleteJoin(g, now, &step)
	return step
}

// fence answers what a replaced static member waits for.
func (s *State) fence(m *member, step *shard.Step) {
	if m.join != 0 {
		m.joinResp.ErrorCode = kerr.FencedInstanceID.Code
		step.Answers = append(step.Answers, shard.Answer{To: m.join, Value: m.joinResp})
	}
	if m.sync != 0 {
		m.syncResp.ErrorCode = kerr.FencedInstanceID.Code
		step.Answers = append(step.Answers, shard.Answer{To: m.sync, Value: m.syncResp})
	}
	m.join, m.sync = 0, 0
}

// rebalance makes all members join again.
func (s *State) rebalance(g *group, now time.Time, step *shard.Step) {
	for _, m := range g.ordered() {
		if m.sync != 0 {
			m.syncResp.ErrorCode = kerr.RebalanceInProgress.Code
			step.Answers = append(step.Answers, shard.Answer{To: m.sync, Value: m.syncResp})
			m.sync = 0
		}
	}
	g.initial, g.deadline = g.phase == empty, now.Add(g.rebalanceTimeout())
	if g.initial {
		g.deadline = now.Add(s.cfg.InitialDelay)
	}
	g.phase = preparing
	s.wakeBy(g, g.deadline)
	for _, m := range g.members {
		if m.join == 0 {
			s.wakeBy(g, m.expires)
		}
	}
}

// tryCompleteJoin ends the joining once everyone is there.
func (s *State) tryCompleteJoin(g *group, now time.Time, step *shard.Step) {
	if g.phase != preparing || g.initial || len(g.invited) > 0 {
		return
	}
	for _, m := range g.members {
		if m.join == 0 {
			return
		}
	}
	s.completeJoin(g, now, step)
}

// completeJoin starts the next generation with those who joined, and the static members.
func (s *State) completeJoin(g *group, now time.Time, step *shard.Step) {
	for _, m := range g.ordered() {
		if m.join == 0 && m.instance == "" {
			s.drop(g, m, step)
		}
	}
	g.generation++
	if len(g.members) == 0 {
		g.phase, g.deadline, g.protocol, g.leader, g.since = empty, time.Time{}, "", "", now
		step.Records = append(step.Records, g.record(now, nil))
		return
	}
	g.protocol = g.vote()
	if lead := g.members[g.leader]; lead == nil || lead.join == 0 {
		g.leader = g.firstJoined()
	}
	for _, m := range g.ordered() {
		if m.join == 0 {
			continue
		}
		g.fillJoin(m, m.joinResp)
		step.Answers = append(step.Answers, shard.Answer{To: m.join, Value: m.joinResp})
		m.join, m.joinResp = 0, nil
		m.expires = now.Add(m.session)
		s.wakeBy(g, m.expires)
	}
	g.phase, g.deadline = completing, now.Add(g.rebalanceTimeout())
	s.wakeBy(g, g.deadline)
}

func (g *group) firstJoined() string {
	for _, m := range g.ordered() {
		if m.join != 0 {
			return m.id
		}
	}
	return g.ordered()[0].id
}

// vote picks the protocol that all members have and most prefer.
func (g *group) vote() string {
	var lists [][]kmsg.JoinGroupRequestProtocol
	for _, m := range g.ordered() {
		lists = append(lists, m.protocols)
	}
	return vote(lists)
}

// vote picks the protocol that is in all lists, and that most prefer.
func vote(lists [][]kmsg.JoinGroupRequestProtocol) string {
	votes, have := map[string]int{}, map[string]int{}
	for _, protocols := range lists {
		for name := range protocolNames(protocols) {
			have[name]++
		}
	}
	best := ""
	for _, protocols := range lists {
		for _, p := range protocols {
			if have[p.Name] == len(lists) {
				votes[p.Name]++
				if best == "" || votes[p.Name] > votes[best] {
					best = p.Name
				}
				break
			}
		}
	}
	return best
}

// fillJoin completes the answer to a member of the current generation; the leader learns of all members.
func (g *group) fillJoin(m *member, resp *kmsg.JoinGroupResponse) {
	resp.ErrorCode, resp.Generation, resp.LeaderID, resp.MemberID = 0, g.generation, g.leader, m.id
	resp.Protocol, resp.ProtocolType = kmsg.StringPtr(g.protocol), kmsg.StringPtr(g.protocolType)
	if m.id != g.leader {
		return
	}
	for _, other := range g.ordered() {
		jm := kmsg.NewJoinGroupResponseMember()
		jm.MemberID, jm.InstanceID, jm.ProtocolMetadata = other.id, nonEmpty(other.instance), other.metadata(g.protocol)
		resp.Members = append(resp.Members, jm)
	}
}

// drop removes a member from memory.
func (s *State) drop(g *group, m *member, step *shard.Step) {
	if m.sync != 0 {
		m.syncResp.ErrorCode = kerr.UnknownMemberID.Code
		step.Answers = append(step.Answers, shard.Answer{To: m.sync, Value: m.syncResp})
	}
	if m.join != 0 {
		m.joinResp.ErrorCode = kerr.UnknownMemberID.Code
		step.Answers = append(step.Answers, shard.Answer{To: m.join, Value: m.joinResp})
	}
	delete(g.members, m.id)
	g.says.remove(m)
	s.touch(g)
	if m.instance != "" && g.static[m.instance] == m.id {
		delete(g.static, m.instance)
	}
}

// remove drops a member that left or went silent, and rebalances the others.
func (s *State) remove(g *group, m *member, now time.Time, step *shard.Step) {
	s.drop(g, m, step)
	if g.phase == stable || g.phase == completing {
		s.rebalance(g, now, step)
	}
	s.tryCompleteJoin(g, now, step)
}

// checkInstance refuses a member that is not that of its instance any more.
func checkInstance(instances map[string]string, instance, member string) *kerr.Error {
	switch current, known := instances[instance]; {
	case instance == "":
		return nil
	case !known:
		return kerr.UnknownMemberID
	case current != member:
		return kerr.FencedInstanceID
	}
	return nil
}

// check finds the member that a request speaks for.
func (g *group) check(memberID, instance string, generation int32) (*member, *kerr.Error) {
	if err := checkInstance(g.static, instance, memberID); err != nil {
		return nil, err
	}
	m := g.members[memberID]
	if m == nil {
		return nil, kerr.UnknownMemberID
	}
	if generation != g.generation {
		return nil, kerr.IllegalGeneration
	}
	return m, nil
}

// Sync handles SyncGroup: the leader brings the assignment, the others wait for it.
func (s *State) Sync(now time.Time, t shard.Ticket, req *kmsg.SyncGroupRequest, topics *Topics) shard.Step {
	resp := req.ResponseKind().(*kmsg.SyncGroupResponse)
	refuse := func(err *kerr.Error) shard.Step {
		resp.ErrorCode = err.Code
		return answer(t, resp)
	}
	g := s.groups[req.Group]
	if g == nil || g.share != nil {
		return refuse(kerr.UnknownMemberID)
	}
	if g.consumer != nil {
		return s.syncConsumer(g, now, t, req, topics)
	}
	m, err := g.check(req.MemberID, deref(req.InstanceID), req.Generation)
	switch {
	case err != nil:
		return refuse(err)
	case req.ProtocolType != nil && *req.ProtocolType != g.protocolType, req.Protocol != nil && *req.Protocol != g.protocol:
		return refuse(kerr.InconsistentGroupProtocol)
	case g.phase == preparing:
		return refuse(kerr.RebalanceInProgress)
	}
	assigned := 0
	for _, a := range req.GroupAssignment {
		assigned += len(a.MemberAssignment)
	}
	if assigned > s.cfg.MaxBytes {
		return refuse(kerr.InvalidRequest)
	}
	m.expires = now.Add(m.session)
	if g.phase == stable {
		g.fillSync(resp, m.assignment)
		return answer(t, resp)
	}
	var step shard.Step
	if m.sync != 0 {
		m.syncResp.ErrorCode = kerr.UnknownMemberID.Code
		step.Answers = append(step.Answers, shard.Answer{To: m.sync, Value: m.syncResp})
	}
	m.sync, m.syncResp = t, resp
	if m.id == g.leader {
		s.assign(g, now, req, &step)
	}
	return step
}

// assign writes the leader's assignment, which makes the group stable, and answers all who wait.
func (s *State) assign(g *group, now time.Time, req *kmsg.SyncGroupRequest, step *shard.Step) {
	assignments := map[string][]byte{}
	for _, a := range req.GroupAssignment {
		assignments[a.MemberID] = a.MemberAssignment
	}
	step.Records = append(step.Records, g.record(now, func(m *member) []byte { return assignments[m.id] }))
	for _, m := range g.ordered() {
		if m.sync != 0 {
			g.fillSync(m.syncResp, slices.Clone(assignments[m.id]))
			step.Answers = append(step.Answers, shard.Answer{To: m.sync, Value: m.syncResp})
			m.sync, m.syncResp = 0, nil
		}
	}
}

func (g *group) fillSync(resp *kmsg.SyncGroupResponse, assignment []byte) {
	resp.MemberAssignment, resp.Protocol, resp.ProtocolType = assignment, kmsg.StringPtr(g.protocol), kmsg.StringPtr(g.protocolType)
}

// Heartbeat handles Heartbeat.
func (s *State) Heartbeat(now time.Time, t shard.Ticket, req *kmsg.HeartbeatRequest, topics *Topics) shard.Step {
	resp := req.ResponseKind().(*kmsg.HeartbeatResponse)
	g := s.groups[req.Group]
	if g == nil || g.share != nil {
		resp.ErrorCode = kerr.UnknownMemberID.Code
		return answer(t, resp)
	}
	if g.consumer != nil {
		return s.heartbeatConsumer(g, now, t, req, topics)
	}
	m, err := g.check(req.MemberID, deref(req.InstanceID), req.Generation)
	if err != nil {
		resp.ErrorCode = err.Code
		return answer(t, resp)
	}
	m.expires = now.Add(m.session)
	if g.phase == preparing {
		resp.ErrorCode = kerr.RebalanceInProgress.Code
	}
	return answer(t, resp)
}

// Leave handles LeaveGroup, from version 3 on for several members at once.
func (s *State) Leave(now time.Time, t shard.Ticket, req *kmsg.LeaveGroupRequest) shard.Step {
	resp := req.ResponseKind().(*kmsg.LeaveGroupResponse)
	g := s.groups[req.Group]
	var step shard.Step
	leave := func(memberID, instance string) int16 {
		if g == nil || g.share != nil {
			return kerr.UnknownMemberID.Code
		}
		if g.consumer != nil {
			return s.removeByAdmin(g, memberID, instance, now, &step)
		}
		if instance != "" && memberID == "" { // an administrator names only the instance
			memberID = g.static[instance]
		}
		if _, given := g.invited[memberID]; given && instance == "" {
			s.uninvite(g, memberID)
			s.tryCompleteJoin(g, now, &step)
			return 0
		}
		m, err := g.check(memberID, instance, g.generation)
		if err != nil {
			return err.Code
		}
		s.remove(g, m, now, &step)
		return 0
	}
	if req.Version < 3 {
		resp.ErrorCode = leave(req.MemberID, "")
	}
	for _, lm := range req.Members {
		rm := kmsg.NewLeaveGroupResponseMember()
		rm.MemberID, rm.InstanceID, rm.ErrorCode = lm.MemberID, lm.InstanceID, leave(lm.MemberID, deref(lm.InstanceID))
		resp.Members = append(resp.Members, rm)
	}
	step.Answers = append(step.Answers, shard.Answer{To: t, Value: resp})
	return step
}
