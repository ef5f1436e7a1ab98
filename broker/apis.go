package broker

import (
	"bytes"
	"context"
	"reflect"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// api is a request that is served, in the versions min to max.
type api struct {
	key      kmsg.Key
	min, max int16
	handle   handler

	flexible int16 // first version with tagged fields (KIP-482)
	index    int   // in the table
}

// A handler answers a request, or returns why its connection must be closed. What a peer
// has sent is done even if the peer is gone: ctx ends only when the broker stops and no
// longer waits for what is in hand. A handler that waits for something else than its own
// work, such as a long poll, waits under r.conn.ctx instead.
type handler func(ctx context.Context, b *Broker, r *request) (*answer, error)

func (a *api) name() string { return a.key.Name() }

// apiTable is all that is served.
type apiTable struct {
	list  []api
	index [128]*api // by key; nil where not served
}

// newAPITable returns the one list of what is served: what is not here is not
// advertised and closes the connection.
//
// Produce reaches down to version 0 since librdkafka takes a broker without it for one
// that cannot compress; versions 0 to 2 carry old message sets only, which are refused
// one by one with UNSUPPORTED_FOR_MESSAGE_FORMAT. The other minimal versions are those
// of Kafka 4 (KIP-896), but for what the Java clients 0.11 and 1.1 have to administer: ACLs, configurations and
// log directories from version 0 on.
func newAPITable() *apiTable {
	t := &apiTable{list: []api{
		{key: kmsg.Produce, min: 0, max: 13, handle: handleProduce},
		{key: kmsg.Fetch, min: 4, max: 18, handle: handleFetch},
		{key: kmsg.ListOffsets, min: 1, max: 11, handle: on(handleListOffsets)},
		{key: kmsg.Metadata, min: 0, max: 13, handle: on(handleMetadata)},
		{key: kmsg.OffsetCommit, min: 2, max: 10, handle: on(handleOffsetCommit)},
		{key: kmsg.OffsetFetch, min: 1, max: 10, handle: on(handleOffsetFetch)},
		{key: kmsg.FindCoordinator, min: 0, max: 6, handle: on(handleFindCoordinator)},
		{key: kmsg.JoinGroup, min: 0, max: 9, handle: on(handleJoinGroup)},
		{key: kmsg.Heartbeat, min: 0, max: 4, handle: on(handleHeartbeat)},
		{key: kmsg.LeaveGroup, min: 0, max: 5, handle: on(handleLeaveGroup)},
		{key: kmsg.SyncGroup, min: 0, max: 5, handle: on(handleSyncGroup)},
		{key: kmsg.DescribeGroups, min: 0, max: 6, handle: on(handleDescribeGroups)},
		{key: kmsg.ListGroups, min: 0, max: 5, handle: on(handleListGroups)},
		{key: kmsg.ApiVersions, min: 0, max: 5, handle: handleAPIVersions},
		{key: kmsg.CreateTopics, min: 2, max: 7, handle: on(handleCreateTopics)},
		{key: kmsg.DeleteTopics, min: 1, max: 6, handle: on(handleDeleteTopics)},
		{key: kmsg.DeleteRecords, min: 0, max: 2, handle: on(handleDeleteRecords)},
		{key: kmsg.InitProducerID, min: 0, max: 5, handle: on(handleInitProducerID)},
		{key: kmsg.AddPartitionsToTxn, min: 0, max: 5, handle: on(handleAddPartitionsToTxn)},
		{key: kmsg.AddOffsetsToTxn, min: 0, max: 4, handle: on(handleAddOffsetsToTxn)},
		{key: kmsg.EndTxn, min: 0, max: 5, handle: on(handleEndTxn)},
		{key: kmsg.WriteTxnMarkers, min: 1, max: 2, handle: on(handleWriteTxnMarkers)},
		{key: kmsg.TxnOffsetCommit, min: 0, max: 6, handle: on(handleTxnOffsetCommit)},
		{key: kmsg.OffsetForLeaderEpoch, min: 2, max: 4, handle: on(handleOffsetForLeaderEpoch)},
		{key: kmsg.AlterReplicaLogDirs, min: 0, max: 2, handle: on(handleAlterReplicaLogDirs)},
		{key: kmsg.DescribeLogDirs, min: 0, max: 5, handle: on(handleDescribeLogDirs)},
		{key: kmsg.DescribeConfigs, min: 0, max: 4, handle: on(handleDescribeConfigs)},
		{key: kmsg.AlterConfigs, min: 0, max: 2, handle: on(handleAlterConfigs)},
		{key: kmsg.CreatePartitions, min: 0, max: 3, handle: on(handleCreatePartitions)},
		{key: kmsg.DeleteGroups, min: 0, max: 3, handle: on(handleDeleteGroups)},
		{key: kmsg.OffsetDelete, min: 0, max: 0, handle: on(handleOffsetDelete)},
		{key: kmsg.IncrementalAlterConfigs, min: 0, max: 1, handle: on(handleIncrementalAlterConfigs)},
		{key: kmsg.SASLHandshake, min: 0, max: 1, handle: handleSASLHandshake},
		{key: kmsg.SASLAuthenticate, min: 0, max: 2, handle: handleSASLAuthenticate},
		{key: kmsg.DescribeACLs, min: 0, max: 3, handle: on(handleDescribeACLs)},
		{key: kmsg.CreateACLs, min: 0, max: 3, handle: on(handleCreateACLs)},
		{key: kmsg.DeleteACLs, min: 0, max: 3, handle: on(handleDeleteACLs)},
		{key: kmsg.DescribeClientQuotas, min: 0, max: 1, handle: on(handleDescribeClientQuotas)},
		{key: kmsg.AlterClientQuotas, min: 0, max: 1, handle: on(handleAlterClientQuotas)},
		{key: kmsg.DescribeUserSCRAMCredentials, min: 0, max: 0, handle: on(handleDescribeUserSCRAMCredentials)},
		{key: kmsg.AlterUserSCRAMCredentials, min: 0, max: 0, handle: on(handleAlterUserSCRAMCredentials)},
		{key: kmsg.ElectLeaders, min: 0, max: 2, handle: on(handleElectLeaders)},
		{key: kmsg.AlterPartitionAssignments, min: 0, max: 1, handle: on(handleAlterPartitionAssignments)},
		{key: kmsg.ListPartitionReassignments, min: 0, max: 0, handle: on(handleListPartitionReassignments)},
		{key: kmsg.DescribeQuorum, min: 0, max: 2, handle: on(handleDescribeQuorum)},
		{key: kmsg.UpdateFeatures, min: 0, max: 2, handle: on(handleUpdateFeatures)},
		{key: kmsg.UnregisterBroker, min: 0, max: 0, handle: on(handleUnregisterBroker)},
		{key: kmsg.DescribeCluster, min: 0, max: 2, handle: on(handleDescribeCluster)},
		{key: kmsg.ConsumerGroupHeartbeat, min: 0, max: 1, handle: on(handleConsumerGroupHeartbeat)},
		{key: kmsg.ConsumerGroupDescribe, min: 0, max: 1, handle: on(handleConsumerGroupDescribe)},
		{key: kmsg.ShareGroupHeartbeat, min: 1, max: 1, handle: on(handleShareGroupHeartbeat)},
		{key: kmsg.ShareGroupDescribe, min: 1, max: 1, handle: on(handleShareGroupDescribe)},
		{key: kmsg.ShareFetch, min: 1, max: 2, handle: handleShareFetch},
		{key: kmsg.ShareAcknowledge, min: 1, max: 2, handle: on(handleShareAcknowledge)},
		{key: kmsg.DescribeShareGroupOffsets, min: 0, max: 1, handle: on(handleDescribeShareGroupOffsets)},
		{key: kmsg.AlterShareGroupOffsets, min: 0, max: 0, handle: on(handleAlterShareGroupOffsets)},
		{key: kmsg.DeleteShareGroupOffsets, min: 0, max: 0, handle: on(handleDeleteShareGroupOffsets)},
		{key: kmsg.GetTelemetrySubscriptions, min: 0, max: 0, handle: on(handleGetTelemetrySubscriptions)},
		{key: kmsg.PushTelemetry, min: 0, max: 0, handle: on(handlePushTelemetry)},
		{key: kmsg.ListConfigResources, min: 0, max: 1, handle: on(handleListConfigResources)},
		{key: kmsg.DescribeProducers, min: 0, max: 0, handle: on(handleDescribeProducers)},
		{key: kmsg.DescribeTransactions, min: 0, max: 0, handle: on(handleDescribeTransactions)},
		{key: kmsg.ListTransactions, min: 0, max: 2, handle: on(handleListTransactions)},
		{key: kmsg.DescribeTopicPartitions, min: 0, max: 0, handle: on(handleDescribeTopicPartitions)},
	}}
	for i := range t.list {
		a := &t.list[i]
		a.index = i
		req := a.key.Request()
		for a.flexible = a.min; a.flexible <= a.max; a.flexible++ {
			if req.SetVersion(a.flexible); req.IsFlexible() {
				break
			}
		}
		t.index[a.key] = a
	}
	return t
}

// byKey returns nil for a key that is not served.
func (t *apiTable) byKey(key int16) *api {
	if key < 0 || int(key) >= len(t.index) {
		return nil
	}
	return t.index[key]
}

// on makes a handler of a function over the decoded message.
func on[M any, Req interface {
	*M
	kmsg.Request
}](f func(ctx context.Context, b *Broker, r *request, req Req) kmsg.Response) handler {
	return func(ctx context.Context, b *Broker, r *request) (*answer, error) {
		req := Req(new(M))
		if err := r.decode(ctx, req); err != nil {
			return nil, err
		}
		resp := f(ctx, b, r, req)
		r.throttle(resp, 0)
		return r.reply(resp), nil
	}
}

// errorResponse builds the answer that gives code for the request as a whole: at the top
// if the message has an error there, else for each topic, partition, resource or key
// that was asked for. ok is false if there is no place for it.
//
// It walks the messages by the names of their fields, since it serves every API and only
// when something went badly wrong.
func errorResponse(r *request, code int16) (resp kmsg.Response, ok bool) {
	req := r.api.key.Request()
	req.SetVersion(r.version)
	if req.ReadFrom(r.body) != nil {
		return nil, false
	}
	encoded := func(code int16) []byte {
		resp = req.ResponseKind()
		setDefault(reflect.ValueOf(resp))
		resp.SetVersion(r.version)
		fillError(reflect.ValueOf(req).Elem(), reflect.ValueOf(resp).Elem(), code)
		return resp.AppendTo(nil)
	}
	// A field that this version does not have yet leaves no trace.
	return resp, !bytes.Equal(encoded(0), encoded(code))
}

func fillError(req, resp reflect.Value, code int16) {
	for i := range resp.NumField() {
		field, name := resp.Field(i), resp.Type().Field(i).Name
		from := req.FieldByName(name)
		switch {
		case name == "ErrorCode":
			field.SetInt(int64(code))
		case field.Kind() == reflect.Slice && field.Type().Elem().Kind() == reflect.Struct:
			if from = sourceOf(req, name); !from.IsValid() {
				continue
			}
			list := reflect.MakeSlice(field.Type(), from.Len(), from.Len())
			for j := range from.Len() {
				to, item := list.Index(j), from.Index(j)
				setDefault(to.Addr())
				if item.Kind() == reflect.Struct {
					fillError(item, to, code)
				} else {
					fillErrorFromKey(item, to, code)
				}
			}
			field.Set(list)
		case from.IsValid() && from.Type() == field.Type() && name != "Version" && name != "UnknownTags":
			field.Set(from)
		}
	}
}

// sourceOf finds the list of the request that the list called name of the response answers.
func sourceOf(req reflect.Value, name string) reflect.Value {
	candidates := []string{name}
	switch name {
	case "Topics":
		candidates = append(candidates, "TopicNames")
	case "Coordinators":
		candidates = append(candidates, "CoordinatorKeys")
	case "Results":
		candidates = append(candidates, "Creations", "Filters", "Upsertions")
	case "Groups":
		candidates = append(candidates, "GroupIDs")
	case "TransactionStates":
		candidates = append(candidates, "TransactionalIDs")
	}
	for _, c := range candidates {
		if f := req.FieldByName(c); f.IsValid() && f.Kind() == reflect.Slice && f.Len() > 0 {
			return f
		}
	}
	return reflect.Value{}
}

// fillErrorFromKey is for lists of plain names or numbers, which the response repeats in a struct.
func fillErrorFromKey(key, to reflect.Value, code int16) {
	for i := range to.NumField() {
		field := to.Field(i)
		switch name := to.Type().Field(i).Name; {
		case name == "ErrorCode":
			field.SetInt(int64(code))
		case name != "Topic" && name != "Partition" && name != "Key" && name != "Group" && name != "GroupID" && name != "TransactionalID":
		case field.Type() == key.Type():
			field.Set(key)
		case field.Kind() == reflect.Pointer && field.Type().Elem() == key.Type():
			p := reflect.New(key.Type())
			p.Elem().Set(key)
			field.Set(p)
		}
	}
}

func setDefault(v reflect.Value) {
	if d, ok := v.Interface().(interface{ Default() }); ok {
		d.Default()
	}
}
