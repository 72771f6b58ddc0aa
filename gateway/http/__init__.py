"""The HTTP server: routes, access control and error answers; only this package imports falcon and
gunicorn."""
