package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/quartet-node/quartet/test/cluster"
)

// Calls are the requests of a node to the API server, without watches.
type Calls struct {
	Total int `json:"total"`
	// Peak is the largest number in a second.
	Peak int `json:"peakPerSecond"`
	// By has their numbers by verb and resource.
	By map[string]int `json:"by"`
}

// auditEvent is a line of the API server's audit log.
type auditEvent struct {
	Verb string `json:"verb"`
	User struct {
		Username string `json:"username"`
	} `json:"user"`
	ObjectRef struct {
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
	} `json:"objectRef"`
	Received time.Time `json:"requestReceivedTimestamp"`
}

// calls returns the requests of a node between two times, from the audit log.
func (r *volumeRig) calls(node string, from, to time.Time) (calls Calls, err error) {
	file, err := os.Open(r.audit)
	if err != nil {
		return calls, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	calls.By = map[string]int{}
	var times []time.Time
	lines := bufio.NewScanner(file)
	const longest = 1 << 20
	lines.Buffer(nil, longest)
	for lines.Scan() {
		var e auditEvent
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return calls, fmt.Errorf("read the audit log: %w", err)
		}
		if e.User.Username != cluster.NodeUser(node) || e.Verb == "watch" || e.Received.Before(from) || e.Received.After(to) {
			continue
		}
		what := e.Verb + " " + e.ObjectRef.Resource
		if e.ObjectRef.Subresource != "" {
			what += "/" + e.ObjectRef.Subresource
		}
		calls.By[what]++
		times = append(times, e.Received)
	}
	calls.Total, calls.Peak = len(times), peak(times)
	return calls, lines.Err()
}

// peak returns the largest number of times within a second. The log has them about in order.
func peak(times []time.Time) (most int) {
	for _, begin := range times {
		n := 0
		for _, t := range times {
			if d := t.Sub(begin); d >= 0 && d < time.Second {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}
