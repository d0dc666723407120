package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/quartet-node/quartet/internal/layout"
	"github.com/quartet-node/quartet/internal/machine"
	"github.com/quartet-node/quartet/internal/peertls"
)

const (
	// oldestCompose is the first version with depends_on.required, which the compose file uses.
	oldestCompose = "2.20"
	// whereCompose names the packages with docker compose.
	whereCompose = "the package docker-compose-plugin of Docker, docker-compose-v2 of Ubuntu; or in a checkout make standins, which puts one into bin/tools"
	// ownImages is the beginning of the IDs of images from the build, which have no other name in the stack; others can be
	// pulled.
	ownImages = "sha256:"
)

// imagesFile matches the file with the IDs of the build's images in an error of docker compose.
var imagesFile = regexp.MustCompile(`\bimages/\S+\.yaml`)

// stack is the result of a compose file with its .env and the environment.
type stack struct {
	// file is the compose file, and compose the command that reads it: "docker compose" or "docker-compose".
	file    string
	compose []string
	// version is the version of the command.
	version string
	// project is the name of the stack.
	project string
	// stateDir, configFile, podLogs and endpoint are the node's paths on the machine.
	stateDir, configFile, podLogs, endpoint string
	// bundled is true if the stack has its own runtime.
	bundled bool
	// images maps each service to its image, and ports each published port of this machine to its service.
	images map[string]string
	ports  map[int]string
}

// up returns the command that starts services of the stack, all without names; logs returns the one that shows the log
// of a service.
func (s *stack) up(services ...string) string { return s.commandLine("up -d", services...) }
func (s *stack) logs(service string) string   { return s.commandLine("logs", service) }

func (s *stack) commandLine(verb string, services ...string) string {
	return strings.Join(append([]string{strings.Join(s.compose, " "), "-f", s.file, verb}, services...), " ")
}

// errNoCompose is the error of a missing docker compose.
var errNoCompose = errors.New("neither 'docker compose' nor docker-compose is there")

// findCompose returns the command of docker compose, and its version.
func findCompose(
	ctx context.Context,
	command func(context.Context, string, ...string) (string, error),
) (compose []string, version string, err error) {
	for _, compose := range [][]string{{"docker", "compose"}, {"docker-compose"}} {
		if out, err := command(ctx, compose[0], append(compose[1:], "version", "--short")...); err == nil {
			return compose, strings.TrimSpace(out), nil
		}
	}
	return nil, "", errNoCompose
}

// readStack reads the file with docker compose.
func readStack(
	ctx context.Context,
	command func(context.Context, string, ...string) (string, error),
	file string,
) (*stack, error) {
	if _, err := os.Stat(file); err != nil {
		return nil, err
	}
	compose, version, err := findCompose(ctx, command)
	if err != nil {
		return nil, err
	}
	out, err := command(ctx, compose[0], append(compose[1:], "-f", file, "config", "--format", "json")...)
	if err != nil {
		return nil, err
	}
	s, err := parseStack([]byte(out))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	s.file, s.compose, s.version = file, compose, version
	return s, nil
}

// composeService is the relevant part of a service in the output of `docker compose config`.
type composeService struct {
	Image   string   `json:"image"`
	Command []string `json:"command"`
	Volumes []struct {
		Type   string `json:"type"`
		Source string `json:"source"`
		Target string `json:"target"`
	} `json:"volumes"`
	Ports []struct {
		Published string `json:"published"`
	} `json:"ports"`
}

// onMachine returns the machine's path for a path of the container; empty if there is none.
func (c composeService) onMachine(path string) string {
	found := ""
	longest := -1
	for _, v := range c.Volumes {
		below, err := filepath.Rel(v.Target, path)
		if v.Type != "bind" || err != nil || below == ".." || strings.HasPrefix(below, "../") || len(v.Target) <= longest {
			continue
		}
		found, longest = filepath.Join(v.Source, below), len(v.Target)
	}
	return found
}

// flag returns the value of a flag in the command, as --NAME=VALUE or --NAME VALUE.
func (c composeService) flag(name string) string {
	for i, arg := range c.Command {
		if value, found := strings.CutPrefix(arg, "--"+name+"="); found {
			return value
		}
		if arg == "--"+name && i+1 < len(c.Command) {
			return c.Command[i+1]
		}
	}
	return ""
}

// parseStack reads the output of `docker compose config --format json`.
func parseStack(data []byte) (*stack, error) {
	var config struct {
		Name     string                    `json:"name"`
		Services map[string]composeService `json:"services"`
	}
	if err := json.Unmarshal(data, &config); err != nil {
		return nil, fmt.Errorf("what docker compose makes of it cannot be read: %w", err)
	}
	elsewhere := config.Services[string(layout.SyncLoop)].flag("configmux-address")
	for _, name := range layout.Services() {
		if name == layout.ConfigMux && elsewhere != "" && peertls.OnNetwork(elsewhere) {
			continue // the node has that of a site, and none of its own
		}
		if _, found := config.Services[string(name)]; !found {
			return nil, fmt.Errorf("it has no service %s: name the compose file of the node with --compose=FILE", name)
		}
	}
	pleg, syncloop := config.Services[string(layout.PLEG)], config.Services[string(layout.SyncLoop)]
	s := &stack{
		project:    config.Name,
		stateDir:   filepath.Dir(pleg.onMachine(layout.DefaultRunDir)),
		configFile: pleg.onMachine(pleg.flag("config")),
		podLogs:    syncloop.flag("pod-logs-dir"),
		images:     map[string]string{},
		ports:      map[int]string{},
	}
	if endpoint := pleg.onMachine(strings.TrimPrefix(pleg.flag("container-runtime-endpoint"), "unix://")); endpoint != "" {
		s.endpoint = "unix://" + endpoint
	}
	_, s.bundled = config.Services["containerd"]
	for name, service := range config.Services {
		s.images[name] = service.Image
		for _, port := range service.Ports {
			if n, err := strconv.Atoi(port.Published); err == nil && n != 0 {
				s.ports[n] = name
			}
		}
	}
	return s, nil
}

// stackChecks returns the checks of --compose.
func (p *patient) stackChecks() []check {
	checks := []check{
		{name: "docker engine", run: p.checkEngine},
		{name: "docker compose", run: p.checkCompose},
	}
	if p.stack == nil {
		return checks
	}
	checks = append(checks, check{name: "images", run: func(ctx context.Context) []machine.Finding {
		missing, err := p.missingImages(ctx, slices.Compact(slices.Sorted(maps.Values(p.stack.images))))
		return p.judgeImages(missing, err)
	}})
	for _, port := range slices.Sorted(maps.Keys(p.stack.ports)) {
		checks = append(checks, p.stackPort(port))
	}
	return checks
}

// checkCompose checks the command and the file, and that the command and the engine are compatible.
func (p *patient) checkCompose(ctx context.Context) []machine.Finding {
	if p.stack == nil {
		return []machine.Finding{p.judgeCompose(nil)}
	}
	_, err := p.command(ctx, p.stack.compose[0], append(p.stack.compose[1:], "-f", p.stack.file, "ps", "--quiet")...)
	return []machine.Finding{p.judgeCompose(err)}
}

// judgeCompose evaluates the error of the command's query to the engine.
func (p *patient) judgeCompose(engineErr error) machine.Finding {
	f := machine.Ok("docker compose", "")
	switch {
	case errors.Is(p.stackErr, errNoCompose):
		return f.With(machine.Fault, errNoCompose.Error(), "install its plugin, "+oldestCompose+" or later: "+whereCompose)
	case errors.Is(p.stackErr, os.ErrNotExist):
		return f.With(
			machine.Fault,
			p.stackErr.Error(),
			"run the command in a checkout, or name the file with --compose=FILE",
		)
	case p.stackErr != nil && imagesFile.MatchString(p.stackErr.Error()):
		return f.With(machine.Fault, p.stackErr.Error(), "make images, which writes this file")
	case p.stackErr != nil:
		return f.With(machine.Fault, p.stackErr.Error(), "mend "+p.stackFile+" or the .env beside it")
	}
	f.Detail = fmt.Sprintf(
		"%s; %s is the project %s, its state is in %s",
		p.stack.version,
		p.stack.file,
		p.stack.project,
		p.stack.stateDir,
	)
	switch {
	case isOlder(p.stack.version, oldestCompose):
		return f.With(machine.Fault, p.stack.version+" is older than "+oldestCompose, "install a newer one: "+whereCompose)
	case engineErr != nil && strings.Contains(engineErr.Error(), "is too new. Maximum supported API version is "):
		_, api, _ := strings.Cut(engineErr.Error(), "Maximum supported API version is ")
		api = strings.TrimSpace(api)
		return f.With(
			machine.Fault,
			"it is too new for the engine, whose API is "+api,
			"export DOCKER_API_VERSION="+api+", or install a newer engine",
		)
	case engineErr != nil:
		return f.With(
			machine.Fault,
			"it cannot ask the engine: "+engineErr.Error(),
			"see 'docker engine' above; else run "+p.stack.commandLine("ps"),
		)
	default:
		return f
	}
}

// judgeImages distinguishes images from the build from those that can be pulled.
func (p *patient) judgeImages(missing []string, err error) []machine.Finding {
	f := machine.Ok("images", "all %d of the stack", len(p.stack.images))
	if err != nil {
		return nil // another finding reports the missing engine
	}
	var built, pulled []string
	for service, image := range p.stack.images {
		switch {
		case !slices.Contains(missing, image):
		case strings.HasPrefix(image, ownImages):
			built = append(built, service)
		default:
			pulled = append(pulled, image)
		}
	}
	slices.Sort(built)
	slices.Sort(pulled)
	var findings []machine.Finding
	if len(built) > 0 {
		text := strings.Join(built, ", ") + ": the image is not there"
		findings = append(findings, f.With(machine.Fault, text, "make images"))
	}
	if len(pulled) > 0 {
		findings = append(findings, f.With(machine.Warning, strings.Join(pulled, ", ")+" not there: the start pulls them",
			"docker pull "+strings.Join(pulled, " && docker pull ")+", or take their profiles out of COMPOSE_PROFILES in .env"))
	}
	if len(findings) == 0 {
		findings = append(findings, f)
	}
	return findings
}

// stackPort checks a port that the stack publishes, on which the engine's own process listens.
func (p *patient) stackPort(port int) check {
	service := p.stack.ports[port]
	name := fmt.Sprintf("port %d", port)
	return check{name: name, run: func(ctx context.Context) []machine.Finding {
		processes, err := p.processes()
		if err != nil {
			return []machine.Finding{machine.Unknown(name, err)}
		}
		return []machine.Finding{
			p.machine.Port(
				port,
				service+" of the stack",
				"set another port for "+service+" in .env",
				processes,
				func(machine.Process) bool {
					return p.stackPublishes(ctx, p.stack.project, port)
				},
			),
		}
	}}
}
