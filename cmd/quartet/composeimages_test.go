package main

import (
	"bufio"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// composeImage is where a service of a compose file has its image from.
type composeImage struct {
	Image   string `json:"image"`
	Extends struct {
		File    string `json:"file"`
		Service string `json:"service"`
	} `json:"extends"`
}

var (
	// ownPins is the file that "make images" writes, which has images by their IDs only.
	ownPins = regexp.MustCompile(`^\$\{QUARTET_IMAGES:-images\}/\$\{[A-Z]+_VERSION:-dev\}\.yaml$`)
	// fromEnv is a variable of .env, without a default.
	fromEnv = regexp.MustCompile(`^\$\{([A-Z]+_IMAGE)\}$`)
	// byDigest is a name with a tag, for people, and a digest.
	byDigest = regexp.MustCompile(`^[a-z0-9./-]+:[a-zA-Z0-9.-]+@sha256:[0-9a-f]{64}$`)
)

// TestComposeNamesImagesByTheirDigest: an image of any service in deploy/compose is one of the build by its ID, or is
// pulled by its digest. A tag can be moved to another image.
func TestComposeNamesImagesByTheirDigest(t *testing.T) {
	settings := composeSettings(t)
	services := composeServices(t)
	if services["syncloop"].Extends.Service != "syncloop" || services["debugger"].Extends.Service != "quartet" {
		t.Errorf("services = %v, want those of all files with what they extend", services)
	}
	for name, service := range services {
		variable := fromEnv.FindStringSubmatch(service.Image)
		switch {
		case service.Image == "" && ownPins.MatchString(service.Extends.File):
		case service.Extends.File == "" && variable != nil && byDigest.MatchString(settings[variable[1]]):
		default:
			t.Errorf("the image of %s is %+v, want one of the build or a digest of .env", name, service)
		}
	}
}

// composeServices returns the services of all compose files; a file that changes a service keeps its image.
func composeServices(t *testing.T) map[string]composeImage {
	t.Helper()
	files, err := filepath.Glob("../../deploy/compose/compose*.yaml")
	if err != nil || len(files) < 3 {
		t.Fatalf("files = %q, %v", files, err)
	}
	all := map[string]composeImage{}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var stack struct {
			Services map[string]composeImage `json:"services"`
		}
		if err := yaml.Unmarshal(content, &stack); err != nil {
			t.Fatal(err)
		}
		for name, service := range stack.Services {
			if _, known := all[name]; !known || service != (composeImage{}) {
				all[name] = service
			}
		}
	}
	return all
}

// composeSettings returns the variables of deploy/compose/.env.
func composeSettings(t *testing.T) map[string]string {
	t.Helper()
	file, err := os.Open("../../deploy/compose/.env")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close() //nolint:errcheck // it was only read
	settings := map[string]string{}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if name, value, found := strings.Cut(lines.Text(), "="); found && !strings.HasPrefix(name, "#") {
			settings[name] = value
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return settings
}
