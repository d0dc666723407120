package localsource

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/configmux/internal/staticpod"
)

// maxManifest bounds a pod, as etcd does behind an API server.
const maxManifest = 1 << 20

// Applied is the outcome of an apply.
type Applied struct {
	// Pod is the pod with its defaults and its whole name. It must not be changed.
	Pod *v1.Pod
	// Op is Add or Update, or None when the pod was there already as it was asked for.
	Op podset.Op

	// resealed is how many files were written, of Reseal.
	resealed int
}

// Apply creates a pod, or replaces the one that was applied by that name. With dryRun it only says what it would do. It
// fails with an *InvalidError, a *TakenError or a *FullError when the pod cannot be, and with ErrEnded when the source
// has ended; with any other error the pod is as it was, or as it was asked for, and a second try finds out.
func (s *Source) Apply(ctx context.Context, pod *v1.Pod, dryRun bool) (Applied, error) {
	wanted, err := s.entryOf(pod)
	if err != nil {
		return Applied{}, err
	}
	return s.ask(ctx, func(ctx context.Context) (Applied, error) { return s.apply(ctx, wanted, dryRun) })
}

// Delete takes a pod out of the source, by its name with or without the node's suffix. It fails with an *UnknownError
// or an *AmbiguousError, and otherwise as Apply does.
func (s *Source) Delete(ctx context.Context, name types.NamespacedName) error {
	if name.Namespace == "" {
		name.Namespace = metav1.NamespaceDefault
	}
	_, err := s.ask(ctx, func(ctx context.Context) (Applied, error) { return Applied{}, s.remove(ctx, name) })
	return err
}

// entryOf makes what is to be kept of a pod. It knows nothing of the other pods.
func (s *Source) entryOf(pod *v1.Pod) (*entry, error) {
	manifest := *pod
	manifest.APIVersion, manifest.Kind = "v1", "Pod"
	if manifest.Namespace == "" {
		manifest.Namespace = metav1.NamespaceDefault
	}
	// What somebody saw of the pod is no part of the wish, nor is what an agent noted on it.
	manifest.Status = v1.PodStatus{}
	manifest.Annotations = podset.StripOwnAnnotations(manifest.Annotations)
	data, err := json.Marshal(&manifest)
	if err != nil {
		return nil, fmt.Errorf("encoding the pod: %w", err)
	}
	if len(data) > maxManifest {
		return nil, &InvalidError{Problems: []staticpod.Problem{{
			Message: fmt.Sprintf("the pod has %d bytes as JSON, and may have %d at most: make it smaller", len(data), maxManifest),
		}}}
	}
	given := types.NamespacedName{Namespace: manifest.Namespace, Name: manifest.Name}
	return s.decode(given, data)
}

// decode makes a pod of a manifest that has one.
func (s *Source) decode(given types.NamespacedName, data []byte) (*entry, error) {
	path := s.pathOf(given)
	result := staticpod.Decode(data, staticpod.Origin{Source: Name, Allowed: s.cfg.Allowed, Node: s.cfg.Node, Standalone: s.cfg.Standalone, Path: path})
	if len(result.Problems) > 0 {
		for i := range result.Problems {
			// All of it is on one line, of a file that nobody has written by hand.
			result.Problems[i].Message = strings.TrimPrefix(result.Problems[i].Message, "line 1: ")
		}
		return nil, &InvalidError{Problems: result.Problems}
	}
	if len(result.Pods) != 1 || len(result.Objects) > 0 {
		return nil, &InvalidError{Problems: []staticpod.Problem{{Message: fmt.Sprintf("it has %d pods, want one", len(result.Pods))}}}
	}
	return &entry{given: given, path: path, manifest: data, pod: result.Pods[0]}, nil
}

// apply brings an entry in. It runs in the owner's goroutine.
func (s *Source) apply(ctx context.Context, wanted *entry, dryRun bool) (Applied, error) {
	began := s.cfg.Clock.Now()
	known := s.pods[wanted.given]
	outcome := Applied{Pod: wanted.pod, Op: podset.Add}
	if known != nil {
		outcome.Op = podset.Update
		if string(known.manifest) == string(wanted.manifest) {
			return Applied{Pod: known.pod, Op: podset.None}, nil
		}
	}
	if err := s.admit(wanted, known); err != nil || dryRun {
		return outcome, err
	}
	ctx, span := s.begin(ctx, wanted.path, began)
	err := s.writeFile(wanted.path, wanted.manifest)
	telemetry.End(span, err)
	causes := map[string]context.Context{wanted.path: ctx}
	if err != nil {
		// The file may be in its place all the same.
		s.read(causes)
		return Applied{}, err
	}
	s.pods[wanted.given] = wanted
	delete(s.broken, wanted.path)
	delete(s.broken, asideOf(wanted.path))
	s.give(causes)
	return outcome, nil
}

// admit says why a pod cannot be beside the others; nil when it can.
func (s *Source) admit(wanted, known *entry) error {
	if known == nil && len(s.pods) >= s.cfg.MaxPods {
		return &FullError{What: "pods", Number: len(s.pods)}
	}
	if other := s.withUID(wanted.pod.UID); other != nil && other != known {
		return &TakenError{What: "UID", Pod: other.name(), Source: Name, Path: other.path}
	}
	holder, taken := s.cfg.Others().Holder(wanted.name(), wanted.pod.UID, Name)
	switch {
	case !taken:
		return nil
	case holder.Name == wanted.name():
		return &TakenError{What: "name", Pod: holder.Name, Source: holder.Source, Path: holder.Path}
	default:
		return &TakenError{What: "UID", Pod: holder.Name, Source: holder.Source, Path: holder.Path}
	}
}

// remove takes a pod out. It runs in the owner's goroutine.
func (s *Source) remove(ctx context.Context, name types.NamespacedName) error {
	began := s.cfg.Clock.Now()
	known, err := s.find(name)
	if unknown := (*UnknownError)(nil); errors.As(err, &unknown) {
		return s.removeBroken(name, unknown)
	}
	if err != nil {
		return err
	}
	ctx, span := s.begin(ctx, known.path, began)
	span.AddEvent("gone")
	err = statedir.RemoveFile(known.path)
	if err != nil {
		err = fmt.Errorf("removing the pod's file: %w: see that %s can be written, and try again", err, s.cfg.Dir)
	}
	telemetry.End(span, err)
	causes := map[string]context.Context{known.path: ctx}
	if err != nil {
		// The file may be gone all the same.
		s.read(causes)
		return err
	}
	delete(s.pods, known.given)
	s.give(causes)
	return nil
}

// removeBroken removes the files of a pod that is left out, or returns why there is nothing to delete.
func (s *Source) removeBroken(name types.NamespacedName, unknown error) error {
	given := types.NamespacedName{Namespace: name.Namespace, Name: strings.TrimSuffix(name.Name, s.suffix())}
	for _, path := range []string{s.pathOf(name), s.pathOf(given)} {
		found := slices.DeleteFunc([]string{path, asideOf(path)}, func(path string) bool {
			_, is := s.broken[path]
			return !is
		})
		if len(found) > 0 {
			return s.removeFiles(found)
		}
	}
	return unknown
}

// removeFiles removes files that hold no pod.
func (s *Source) removeFiles(paths []string) error {
	for _, path := range paths {
		if err := statedir.RemoveFile(path); err != nil {
			s.read(nil)
			return fmt.Errorf("removing the file of the pod: %w: see that %s can be written, and try again", err, s.cfg.Dir)
		}
		delete(s.broken, path)
	}
	s.give(nil)
	return nil
}

// find returns the pod that a name means.
func (s *Source) find(name types.NamespacedName) (*entry, error) {
	var exact *entry
	if given, has := strings.CutSuffix(name.Name, s.suffix()); has {
		exact = s.pods[types.NamespacedName{Namespace: name.Namespace, Name: given}]
	}
	suffixed := s.pods[name]
	switch {
	case exact != nil && suffixed != nil:
		return nil, &AmbiguousError{Exact: exact.name(), Suffixed: suffixed.name()}
	case exact != nil:
		return exact, nil
	case suffixed != nil:
		return suffixed, nil
	default:
		return nil, &UnknownError{Name: name}
	}
}

// begin begins the part of the trace of a change that is this source's: in the caller's trace, or in one of its own.
func (s *Source) begin(ctx context.Context, path string, began time.Time) (context.Context, trace.Span) {
	// What follows from the change goes on when the call has ended.
	ctx, span := s.cfg.Tracer.Start(context.WithoutCancel(ctx), "source.read", trace.WithTimestamp(began))
	if span.IsRecording() {
		span.SetAttributes(telemetry.AttrFile.String(path), telemetry.AttrSource.String(Name))
	}
	return ctx, span
}

// writeFile puts a file on the disk, in the place of what was set aside of it.
func (s *Source) writeFile(path string, data []byte) error {
	err := statedir.WriteFileAtomic(path, data, fileMode)
	if err == nil {
		if _, aside := s.broken[asideOf(path)]; aside {
			err = statedir.RemoveFile(asideOf(path))
		}
	}
	if err != nil {
		return fmt.Errorf("keeping the %s: %w: see that there is space in %s and that it can be written, and try again", whatIn(path), err, s.cfg.Dir)
	}
	return nil
}
