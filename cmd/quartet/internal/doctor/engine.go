package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/quartet-node/quartet/internal/machine"
)

const (
	// engineSocket is the container engine's default socket.
	engineSocket = "/var/run/docker.sock"
	// oldestEngineAPI is the first version with the cgroup namespace of a container (`cgroup: host`), which the bundled
	// runtime needs: Docker 20.10.
	oldestEngineAPI = "1.41"
	// projectLabel is docker compose's label on the containers of a stack.
	projectLabel = "com.docker.compose.project"
)

// engineClient returns a client for the engine of DOCKER_HOST, or the default one; nil if that is not a socket.
func engineClient(dockerHost string) *http.Client {
	switch socket, isUnix := strings.CutPrefix(dockerHost, "unix://"); {
	case dockerHost == "":
		return unixClient(engineSocket)
	case isUnix:
		return unixClient(socket)
	default:
		return nil
	}
}

// errNotFound is the engine's answer for a missing object.
var errNotFound = errors.New("not found")

// askEngine sends a request for JSON to the engine. A path without a version uses the engine's own API version.
func (p *patient) askEngine(ctx context.Context, path string, into any) (err error) {
	if p.engine == nil {
		return fmt.Errorf("DOCKER_HOST is %s, which is not a socket of this machine", p.dockerHost)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://engine"+path, http.NoBody)
	if err != nil {
		return err
	}
	response, err := p.engine.Do(request)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	switch response.StatusCode {
	case http.StatusOK:
		return json.NewDecoder(response.Body).Decode(into)
	case http.StatusNotFound:
		return errNotFound
	default:
		return fmt.Errorf("the engine answers %s", response.Status)
	}
}

// engineVersion is the version of the engine.
type engineVersion struct {
	Version    string
	APIVersion string `json:"ApiVersion"`
}

func (p *patient) checkEngine(ctx context.Context) []machine.Finding {
	var version engineVersion
	err := p.askEngine(ctx, "/version", &version)
	return []machine.Finding{p.judgeEngine(version, err)}
}

func (p *patient) judgeEngine(version engineVersion, err error) machine.Finding {
	f := machine.Ok("docker engine", "%s, API %s", version.Version, version.APIVersion)
	switch {
	case p.engine == nil:
		return f.With(machine.Fault, err.Error()+", and the stack is to run on this one", "unset DOCKER_HOST")
	case err != nil:
		return f.With(
			machine.Fault,
			"it does not answer: "+err.Error(),
			"start it ('systemctl start docker', or dockerd), or install it (the package docker.io, or docker-ce)",
		)
	case isOlder(version.APIVersion, oldestEngineAPI):
		return f.With(machine.Fault, f.Detail+": the stack needs API "+oldestEngineAPI, "install Docker 20.10 or later")
	default:
		return f
	}
}

// missingImages returns the images that the engine does not have.
func (p *patient) missingImages(ctx context.Context, images []string) (missing []string, err error) {
	for _, image := range images {
		var answer struct{ ID string }
		err := p.askEngine(ctx, "/images/"+url.PathEscape(image)+"/json", &answer)
		switch {
		case errors.Is(err, errNotFound):
			missing = append(missing, image)
		case err != nil:
			return nil, err
		}
	}
	return missing, nil
}

// stackPublishes reports whether a container of the stack publishes a port on this machine.
func (p *patient) stackPublishes(ctx context.Context, project string, port int) bool {
	var containers []struct {
		Labels map[string]string
		Ports  []struct{ PublicPort int }
	}
	if err := p.askEngine(ctx, "/containers/json", &containers); err != nil {
		return false
	}
	for _, c := range containers {
		for _, published := range c.Ports {
			if c.Labels[projectLabel] == project && published.PublicPort == port {
				return true
			}
		}
	}
	return false
}

// isOlder compares versions by their first two numbers. An invalid version, as of a build from source, is not older.
func isOlder(version, minimum string) bool {
	var a, b [2]int
	if _, err := fmt.Sscanf(strings.TrimPrefix(version, "v"), "%d.%d", &a[0], &a[1]); err != nil {
		return false
	}
	if _, err := fmt.Sscanf(minimum, "%d.%d", &b[0], &b[1]); err != nil {
		return false
	}
	return a[0] < b[0] || (a[0] == b[0] && a[1] < b[1])
}
