package filesource

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	v1 "k8s.io/api/core/v1"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/services/configmux/internal/apiobject"
	"github.com/quartet-node/quartet/services/configmux/internal/source"
)

// give merges the content of all files and passes it to the sink.
func (s *Source) give() {
	reading := source.Reading{ReadAt: s.readAt, Mode: s.mode, Causes: s.causes}
	if s.failure != nil {
		reading.Failed = true
		reading.Errors = []source.Error{{
			Path:    s.cfg.Path,
			Message: fmt.Sprintf("cannot read it: %s; its last known content is kept", reason(s.failure)),
			SeenAt:  s.cfg.Clock.Now(),
		}}
		s.sink.Set(Name, reading)
		return
	}
	// The order of paths decides which of two pods with the same name is used, so that a restarted process decides the
	// same.
	var pods []*v1.Pod
	var from []string
	var objects []*apiobject.Object
	var objectsFrom []string
	for _, path := range slices.Sorted(maps.Keys(s.files)) {
		f := s.files[path]
		reading.Errors = append(append(reading.Errors, f.errs...), f.ignored...)
		for _, pod := range f.held.Pods {
			pods, from = append(pods, pod), append(from, path)
		}
		for _, object := range f.held.Objects {
			objects, objectsFrom = append(objects, object), append(objectsFrom, path)
		}
	}
	kept, rejected := podset.Filter(pods)
	pathOf := make(map[*v1.Pod]string, len(pods))
	for i, pod := range pods {
		pathOf[pod] = from[i]
	}
	for _, pod := range kept {
		path := pathOf[pod]
		reading.Pods = append(
			reading.Pods,
			source.Pod{Pod: pod, Path: path, Life: strconv.FormatUint(s.files[path].life, 10)},
		)
	}
	for _, r := range rejected {
		path := from[r.Index]
		reading.Errors = append(reading.Errors, source.Error{
			Path: path, Pod: nameOf(r.Pod).String(), Field: r.Field, SeenAt: s.files[path].lookedAt,
			Message: fmt.Sprintf("%s, by %s; this one is left out: remove one of the two, or rename it", r.Reason, pathOf[r.By]),
		})
	}
	s.addObjects(&reading, objects, objectsFrom)
	s.bound(&reading)
	s.sink.Set(Name, reading)
}

// addObjects adds objects, each with its file, to a reading, and reports duplicates.
func (s *Source) addObjects(reading *source.Reading, objects []*apiobject.Object, from []string) {
	_, repeated := apiobject.Filter(objects)
	out := map[int]bool{}
	for _, r := range repeated {
		out[r.Index] = true
		path := from[r.Index]
		reading.Errors = append(reading.Errors, source.Error{
			Path:   path,
			Object: objects[r.Index].String(),
			Field:  "metadata.name",
			SeenAt: s.files[path].lookedAt,
			Message: fmt.Sprintf(
				"the %s is already given, by %s; this one is left out: remove one of the two, or rename it",
				objects[r.Index],
				from[r.By],
			),
		})
	}
	for i, object := range objects {
		if !out[i] {
			reading.Objects = append(reading.Objects, source.Object{Object: object, Path: from[i]})
		}
	}
}

// maxErrors bounds the number of reported errors, so that a directory with ten thousand files of another program,
// mounted by mistake, does not fill the memory, the log and the responses.
const maxErrors = 1000

// bound drops excess errors, and reports their number.
func (s *Source) bound(reading *source.Reading) {
	more := len(reading.Errors) - maxErrors
	if more <= 0 {
		return
	}
	reading.Errors = append(slices.Clip(reading.Errors[:maxErrors]), source.Error{
		Path: s.cfg.Path, SeenAt: reading.Errors[maxErrors].SeenAt,
		Message: fmt.Sprintf("%d more errors of its manifests are not shown: correct the others first", more),
	})
}
