"""The HTTP server: routes, access control and error answers; only this room imports falcon and
gunicorn.
"""
