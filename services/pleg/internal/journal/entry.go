package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"strconv"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	lifecyclev1 "github.com/quartet-node/quartet/gen/quartet/lifecycle/v1"
	"github.com/quartet-node/quartet/services/pleg/internal/record"
)

const (
	// version is the version of the file's format, and textVersion the one that has the status of a pod as JSON, which
	// takes three times as long to read: that of v0.1.0.
	version, textVersion = 2, 1
)

// entry is one line of the file: "CRC JSON", the checksum (CRC-32C) of the rest of the line in 8 hexadecimal digits.
type entry struct {
	// Version is the version of the format.
	Version int `json:"version"`
	// Line is the number of the line, so that a file that lost lines while it was written is found: its first line may
	// otherwise pass for all pods. 0 is a line of v0.1.0.
	Line int `json:"line,omitempty"`
	// Tokens are the tokens of followers that have received everything up to this line.
	Tokens [][]byte `json:"tokens"`
	// Pods are the pods with changes since the previous line; all pods in the first line.
	Pods []pod `json:"pods,omitempty"`
	// Gone are the UIDs of pods that the runtime does not have any more.
	Gone []string `json:"gone,omitempty"`
}

// pod is a pod in an entry.
type pod struct {
	// State is the PodStatus of a record.Published, encoded by protobuf.
	State []byte `json:"state,omitempty"`
	// Status is State as JSON, in lines of textVersion.
	Status json.RawMessage `json:"status,omitempty"`
	// Phases are the phases of a record.Published; null if the pod was never inspected.
	Phases map[string]string `json:"phases"`
	// Whole is the Config.Observer of a record.Published that is whole; empty if it is not.
	Whole string `json:"whole,omitempty"`
}

// cut is the content of a file.
type cut struct {
	tokens    [][]byte
	published map[string]record.Published
	// pods holds the pods in their encoded form, of the present version.
	pods map[string]pod
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (e entry) encode() ([]byte, error) {
	data, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("encoding the journal entry: %w", err)
	}
	return append(fmt.Appendf(nil, "%08x %s", crc32.Checksum(data, castagnoli), data), '\n'), nil
}

func encodePod(published record.Published, observer string) (pod, error) {
	state, err := encodeState(published.Status)
	if err != nil {
		return pod{}, err
	}
	encoded := pod{State: state, Phases: published.Phases}
	if published.Whole {
		encoded.Whole = observer
	}
	return encoded, nil
}

// encodeState encodes a status; equal ones in the same way.
func encodeState(status *lifecyclev1.PodStatus) ([]byte, error) {
	return proto.MarshalOptions{Deterministic: true}.Marshal(status)
}

// same reports whether two pods have the same content.
func (p pod) same(other pod) bool {
	return p.Whole == other.Whole && bytes.Equal(p.State, other.State) &&
		(p.Phases == nil) == (other.Phases == nil) && maps.Equal(p.Phases, other.Phases)
}

// decode decodes a pod for an observer, and leaves it in the form of the present version.
func (p *pod) decode(observer string) (record.Published, error) {
	status := &lifecyclev1.PodStatus{}
	var err error
	if len(p.Status) > 0 {
		if err = (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(p.Status, status); err == nil {
			p.State, err = encodeState(status)
		}
		p.Status = nil
	} else {
		err = proto.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(p.State, status)
	}
	if err != nil {
		return record.Published{}, err
	}
	if status.GetUid() == "" {
		return record.Published{}, errors.New("a pod has no UID")
	}
	return record.Published{Status: status, Phases: p.Phases, Whole: p.Whole != "" && p.Whole == observer}, nil
}

// decode decodes a file for an observer. It ignores an incomplete last line; any other damaged line is an error.
func decode(data []byte, observer string) (*cut, error) {
	c := &cut{published: map[string]record.Published{}, pods: map[string]pod{}}
	for number := 1; len(data) > 0; number++ {
		line, rest, whole := bytes.Cut(data, []byte("\n"))
		e, err := decodeLine(line)
		cutOff := !whole || len(rest) == 0 && errors.Is(err, errChecksum)
		switch {
		case number > 1 && cutOff:
			return c, nil
		case !whole:
			return nil, errors.New("line 1 is cut off")
		case err == nil && e.Line != 0 && e.Line != number:
			err = fmt.Errorf("it was written as line %d: lines before it are lost", e.Line)
		case err == nil:
			err = c.take(e, observer)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		data = rest
	}
	if len(c.tokens) == 0 {
		return nil, errors.New("the file is empty")
	}
	return c, nil
}

// errChecksum is the error of a damaged line.
var errChecksum = errors.New("the checksum is not that of the line")

func decodeLine(line []byte) (e entry, err error) {
	sum, data, _ := bytes.Cut(line, []byte(" "))
	want, err := strconv.ParseUint(string(sum), 16, 32)
	if err != nil || uint32(want) != crc32.Checksum(data, castagnoli) {
		return e, errChecksum
	}
	if err := json.Unmarshal(data, &e); err != nil {
		return e, err
	}
	if e.Version != version && e.Version != textVersion {
		return e, fmt.Errorf("it is of version %d, and this pleg reads the versions up to %d", e.Version, version)
	}
	return e, nil
}

// take adds the content of a line.
func (c *cut) take(e entry, observer string) error {
	for _, p := range e.Pods {
		published, err := p.decode(observer)
		if err != nil {
			return err
		}
		c.published[published.Status.GetUid()], c.pods[published.Status.GetUid()] = published, p
	}
	for _, uid := range e.Gone {
		delete(c.published, uid)
		delete(c.pods, uid)
	}
	c.tokens = e.Tokens
	return nil
}
