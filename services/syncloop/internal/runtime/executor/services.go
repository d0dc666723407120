package executor

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/cluster/servicelinks"
)

// Services gives the variables that tell containers where services are. *servicelinks.Links does it for a node of a cluster,
// servicelinks.None for others.
type Services interface {
	// Variables fails with a *servicelinks.UnknownError before the services were listed once.
	Variables(ctx context.Context, pod *v1.Pod) ([]v1.EnvVar, error)
	// Forget says that a pod is gone.
	Forget(uid types.UID)
}

// serviceVariables are those of one SyncPod: all containers that it creates have the same ones.
type serviceVariables struct {
	once  sync.Once
	found []v1.EnvVar
	err   error
}

// servicesFile has the variables of services that a pod's containers were given last. It lets a pod go on that ran on this node before
// syncloop or the machine was restarted, while the API server is away.
const servicesFile = "service-variables.json"

// serviceVariables returns the variables of services for the pod's containers. It fails for a pod of the API server that has not run
// here before, until the services were listed once.
func (s *podSync) serviceVariables(ctx context.Context) ([]v1.EnvVar, error) {
	s.services.once.Do(func() { s.services.found, s.services.err = s.findServices(ctx) })
	return s.services.found, s.services.err
}

func (s *podSync) findServices(ctx context.Context) ([]v1.EnvVar, error) {
	path := filepath.Join(s.m.podDir(string(s.pod.UID)), servicesFile)
	found, err := s.m.cfg.Services.Variables(ctx, s.pod)
	if unknown := (*servicelinks.UnknownError)(nil); errors.As(err, &unknown) {
		if before, ok := readVariables(path); ok {
			s.m.cfg.Logger.DebugContext(ctx, "the services are not known, containers get the variables that the pod was given last",
				telemetry.KeyPod, podName(s.pod), telemetry.KeyError, err)
			return before, nil
		}
		if !servicelinks.Required(s.pod) {
			return nil, nil
		}
	}
	if err != nil {
		return nil, err
	}
	before, ok := readVariables(path)
	if ok && slices.EqualFunc(before, found, sameVariable) || !ok && len(found) == 0 && !servicelinks.Required(s.pod) {
		return found, nil
	}
	if err := writeVariables(path, found); err != nil { // the start does not depend on it
		s.m.cfg.Logger.WarnContext(ctx, "the variables of services were not saved; a restart of the pod's containers after one of syncloop waits for the API server",
			telemetry.KeyPod, podName(s.pod), telemetry.KeyError, err)
	}
	return found, nil
}

func sameVariable(a, b v1.EnvVar) bool { return a.Name == b.Name && a.Value == b.Value }

// readVariables reads what writeVariables wrote. A file that cannot be read or understood counts as one that is not there.
func readVariables(path string) ([]v1.EnvVar, bool) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, false
	}
	var variables []v1.EnvVar
	if err := json.Unmarshal(data, &variables); err != nil {
		return nil, false
	}
	return variables, true
}

func writeVariables(path string, variables []v1.EnvVar) error {
	data, err := json.Marshal(variables)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	return statedir.ReplaceFile(path, data, 0o600)
}
